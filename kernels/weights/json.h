// A strict reader of JSON (RFC 8259) for the two headers of a packed model. Input is hostile: every error is
// thrown with its byte offset, nesting is bounded, a duplicate key is refused. Knows nothing of models or
// tensors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace redoubt {

class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the file's order

  // Reads one whole document. Throws JsonError.
  static Json parse(std::string_view text);

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  // The value as that type, or null if it is of another. An integer is also a double.
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Array* array() const { return std::get_if<Array>(&value_); }
  const Object* object() const { return std::get_if<Object>(&value_); }
  bool number(double& out) const;
  // A member of an object; null where this is no object or has none of that name.
  const Json* find(std::string_view key) const;

 private:
  friend class JsonParser;
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> value_ = nullptr;
};

}  // namespace redoubt
