// Recursive descent over RFC 8259's grammar. Knows nothing of models or tensors.
#include "weights/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace redoubt {

constexpr int kMaxDepth = 32;  // a header nests three deep, a configuration a little more

bool Json::number(double& out) const {
  if (const auto* i = std::get_if<int64_t>(&value_)) return out = double(*i), true;
  if (const auto* d = std::get_if<double>(&value_)) return out = *d, true;
  return false;
}

const Json* Json::find(std::string_view key) const {
  const Object* members = object();
  if (members == nullptr) return nullptr;
  for (const auto& [name, value] : *members) {
    if (name == key) return &value;
  }
  return nullptr;
}

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json document() {
    Json value = read_value(0);
    skip_spaces();
    if (at_ != text_.size()) fail("more text after the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw JsonError("JSON: " + what + " at byte " + std::to_string(at_));
  }
  bool ended() const { return at_ >= text_.size(); }
  char peek() const { return ended() ? '\0' : text_[at_]; }
  void skip_spaces() {
    while (!ended() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')) ++at_;
  }
  // Takes `c` after any spaces, or returns false.
  bool take(char c) {
    skip_spaces();
    if (ended() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("expected '") + c + "'");
  }
  void expect_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail("not a JSON value");
    at_ += word.size();
  }

  Json read_value(int depth) {
    if (depth > kMaxDepth) fail("nested more than " + std::to_string(kMaxDepth) + " deep");
    skip_spaces();
    Json json;
    switch (peek()) {
      case '{':
        json.value_ = read_object(depth);
        break;
      case '[':
        json.value_ = read_array(depth);
        break;
      case '"':
        json.value_ = read_string();
        break;
      case 't':
        expect_word("true"), json.value_ = true;
        break;
      case 'f':
        expect_word("false"), json.value_ = false;
        break;
      case 'n':
        expect_word("null");
        break;
      default:
        read_number(json);
    }
    return json;
  }

  Json::Object read_object(int depth) {
    Json::Object members;
    expect('{');
    if (take('}')) return members;
    do {
      skip_spaces();
      std::string key = read_string();
      expect(':');
      Json value = read_value(depth + 1);
      members.emplace_back(std::move(key), std::move(value));
    } while (take(','));
    expect('}');
    refuse_duplicates(members);
    return members;
  }

  void refuse_duplicates(const Json::Object& members) const {
    std::vector<std::string_view> keys;
    for (const auto& member : members) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) fail("key \"" + std::string(*twice) + "\" twice in the object that ends");
  }

  Json::Array read_array(int depth) {
    Json::Array items;
    expect('[');
    if (take(']')) return items;
    do items.push_back(read_value(depth + 1));
    while (take(','));
    expect(']');
    return items;
  }

  std::string read_string() {
    if (peek() != '"') fail("expected a string");
    ++at_;
    std::string out;
    for (;;) {
      if (ended()) fail("string without an end");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
      ++at_;
      if (c == '"') return out;
      if (c == '\\') {
        read_escape(out);
      } else {
        out.push_back(c);
      }
    }
  }

  void read_escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (peek() == 'u') {
      ++at_;
      append_utf8(out, read_code_point());
    } else if (const size_t i = kNames.find(peek()); !ended() && i != std::string_view::npos) {
      ++at_;
      out.push_back(kValues[i]);
    } else {
      fail("unknown escape in a string");
    }
  }

  uint32_t read_hex4() {
    uint32_t unit = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
    if (error != std::errc{} || end != digits.data() + 4) fail("\\u without four hexadecimal digits");
    at_ += 4;
    return unit;
  }

  uint32_t read_code_point() {
    const uint32_t unit = read_hex4();
    if (unit < 0xd800 || unit > 0xdfff) return unit;
    if (unit > 0xdbff || text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
    at_ += 2;
    const uint32_t low = read_hex4();
    if (low < 0xdc00 || low > 0xdfff) fail("half of a surrogate pair");
    return 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
  }

  static void append_utf8(std::string& out, uint32_t code) {
    if (code < 0x80) {
      out.push_back(char(code));
    } else if (code < 0x800) {
      out.push_back(char(0xc0 | code >> 6));
      out.push_back(char(0x80 | (code & 0x3f)));
    } else if (code < 0x10000) {
      out.push_back(char(0xe0 | code >> 12));
      out.push_back(char(0x80 | (code >> 6 & 0x3f)));
      out.push_back(char(0x80 | (code & 0x3f)));
    } else {
      out.push_back(char(0xf0 | code >> 18));
      out.push_back(char(0x80 | (code >> 12 & 0x3f)));
      out.push_back(char(0x80 | (code >> 6 & 0x3f)));
      out.push_back(char(0x80 | (code & 0x3f)));
    }
  }

  size_t skip_digits() {
    const size_t begin = at_;
    while (!ended() && peek() >= '0' && peek() <= '9') ++at_;
    return at_ - begin;
  }

  void read_number(Json& json) {
    const size_t begin = at_;
    if (peek() == '-') ++at_;
    const size_t first_digit = at_;
    const size_t digits = skip_digits();
    if (digits == 0) fail("not a JSON value");
    if (digits > 1 && text_[first_digit] == '0') fail("number with a leading zero");
    bool whole = true;
    if (peek() == '.') {
      whole = false, ++at_;
      if (skip_digits() == 0) fail("number that ends in its point");
    }
    if (peek() == 'e' || peek() == 'E') {
      whole = false, ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (skip_digits() == 0) fail("number without its exponent");
    }
    const char* from = text_.data() + begin;
    const char* to = text_.data() + at_;
    int64_t integer = 0;
    double real = 0;
    if (whole && std::from_chars(from, to, integer).ec == std::errc{}) {
      json.value_ = integer;
    } else if (std::from_chars(from, to, real).ec == std::errc{}) {
      json.value_ = real;
    } else {
      fail("number out of range");
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

Json Json::parse(std::string_view text) { return JsonParser(text).document(); }

}  // namespace redoubt
