// Removed once the first source lands.
#include "dflash/error.h"
