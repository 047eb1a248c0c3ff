// A regular file opened for positioned reads. No mapping: a file that shrinks gives an error, not a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace dflash {

class FileBytes {
  public:
    /// Throws Error(model_load): missing, unreadable, not a regular file. Never blocks on pipes or devices.
    explicit FileBytes(std::filesystem::path path);
    FileBytes(FileBytes && other) noexcept;
    FileBytes & operator=(FileBytes && other) noexcept;
    ~FileBytes();

    [[nodiscard]] const std::filesystem::path & path() const { return path_; }
    [[nodiscard]] std::uint64_t size() const { return size_; }
    /// Fills dst from `offset`. Throws Error(model_load) when the file ends before. Safe from several threads.
    void read(std::uint64_t offset, std::span<std::byte> dst) const;

  private:
    void close() noexcept;

    std::filesystem::path path_;
    std::uint64_t size_ = 0;
    std::intptr_t handle_ = -1;  // file descriptor, or HANDLE on Windows
};

}  // namespace dflash
