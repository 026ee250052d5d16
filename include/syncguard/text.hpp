/*
 * Text for the C library: NUL-terminated copies of keys and lock ids, without allocating. Not for
 * applications.
 */
#ifndef SYNCGUARD_TEXT_HPP
#define SYNCGUARD_TEXT_HPP

#include <cstring>
#include <string_view>

#include "types.h"

namespace syncguard
{
namespace detail
{

class text
{
  public:
    explicit text(std::string_view from) noexcept
        : fits_(from.size() < sizeof copy_ && from.find('\0') == std::string_view::npos)
    {
        size_t size = fits_ ? from.size() : 0;
        if (size > 0)
            std::memcpy(copy_, from.data(), size);
        copy_[size] = '\0';
    }

    /* False for text that cannot be copied: it is too long, or contains a NUL. */
    bool fits() const noexcept
    {
        return fits_;
    }

    const char *get() const noexcept
    {
        return copy_;
    }

  private:
    bool fits_;
    char copy_[SYNCGUARD_MAX_RAW_KEY_BYTES + 1];
};

} // namespace detail
} // namespace syncguard

#endif
