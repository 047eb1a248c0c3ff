// Positioned reads on POSIX and Windows.
#include "file_bytes.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#ifdef _WIN32
#define NOMINMAX
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "dflash/error.h"
#include "dflash/text.h"

namespace dflash {

namespace {

constexpr std::size_t max_read = std::size_t{1} << 30;  // bytes a single system call is asked for

[[noreturn]] void fail(const std::filesystem::path & path, const std::string & what) {
    throw Error(ErrorCode::model_load, "cannot read '" + printable_path(path) + "': " + what);
}

void require_regular(const std::filesystem::path & path) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    switch (status.type()) {
        case std::filesystem::file_type::regular: return;
        case std::filesystem::file_type::not_found: fail(path, "no such file");
        case std::filesystem::file_type::directory: fail(path, "it is a directory; name a .gguf file");
        case std::filesystem::file_type::none: fail(path, error.message());
        default: fail(path, "it is not a regular file (a pipe, socket or device); name a .gguf file");
    }
}

}  // namespace

FileBytes::FileBytes(std::filesystem::path path) : path_(std::move(path)) {
    require_regular(path_);
#ifdef _WIN32
    const HANDLE handle = CreateFileW(path_.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                                      OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
    if (handle == INVALID_HANDLE_VALUE) {
        fail(path_, std::system_category().message(static_cast<int>(GetLastError())));
    }
    handle_ = reinterpret_cast<std::intptr_t>(handle);
    LARGE_INTEGER size{};
    if (GetFileSizeEx(handle, &size) == 0) {
        const int code = static_cast<int>(GetLastError());
        close();
        fail(path_, std::system_category().message(code));
    }
    size_ = static_cast<std::uint64_t>(size.QuadPart);
#else
    // O_NONBLOCK: a pipe put in the file's place after the check above must not hang the open.
    const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        fail(path_, std::generic_category().message(errno));
    }
    handle_ = fd;
    struct stat info{};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close();
        fail(path_, "it is not a regular file");
    }
    size_ = static_cast<std::uint64_t>(info.st_size);
#endif
}

FileBytes::FileBytes(FileBytes && other) noexcept
    : path_(std::move(other.path_)), size_(other.size_), handle_(std::exchange(other.handle_, -1)) {}

FileBytes & FileBytes::operator=(FileBytes && other) noexcept {
    if (this != &other) {
        close();
        path_ = std::move(other.path_);
        size_ = other.size_;
        handle_ = std::exchange(other.handle_, -1);
    }
    return *this;
}

FileBytes::~FileBytes() { close(); }

void FileBytes::close() noexcept {
    if (handle_ != -1) {
#ifdef _WIN32
        CloseHandle(reinterpret_cast<HANDLE>(handle_));
#else
        ::close(static_cast<int>(handle_));
#endif
        handle_ = -1;
    }
}

void FileBytes::read(std::uint64_t offset, std::span<std::byte> dst) const {
    while (!dst.empty()) {
        const std::size_t want = std::min(dst.size(), max_read);
#ifdef _WIN32
        OVERLAPPED at{};
        at.Offset = static_cast<DWORD>(offset);
        at.OffsetHigh = static_cast<DWORD>(offset >> 32);
        DWORD got = 0;
        const BOOL ok = ReadFile(reinterpret_cast<HANDLE>(handle_), dst.data(), static_cast<DWORD>(want), &got, &at);
        if (ok == 0 && GetLastError() != ERROR_HANDLE_EOF) {
            fail(path_, std::system_category().message(static_cast<int>(GetLastError())));
        }
        const auto n = static_cast<std::size_t>(got);
#else
        const ssize_t got = ::pread(static_cast<int>(handle_), dst.data(), want, static_cast<off_t>(offset));
        if (got < 0) {
            if (errno == EINTR) {
                continue;
            }
            fail(path_, std::generic_category().message(errno));
        }
        const auto n = static_cast<std::size_t>(got);
#endif
        if (n == 0) {
            fail(path_, "it ends at byte " + std::to_string(offset) + ", " + std::to_string(dst.size()) +
                            " bytes too early (was it changed while in use?)");
        }
        offset += n;
        dst = dst.subspan(n);
    }
}

}  // namespace dflash
