// The numbers that every tier of the non-linear kernels shares: the exponential's polynomials and the shapes
// of sums. All tiers do the same IEEE operations in the same order per output, so they agree bit for bit.
// Knows no kernel.
//
// 2^x: n = round(x) by adding and subtracting kRoundMagic, f = x - n in [-0.5, 0.5], then a polynomial
// (Horner, fma) times 2^n; but see kExp2ToBf16. Polynomials are minimax fits of the relative error with the
// constant term held at 1, so that 2^0 == 1 exactly.
#pragma once

namespace redoubt {

// 1.5 * 2^23 + 127: after the addition the low bits hold n + 127, the biased exponent of 2^n.
inline constexpr float kRoundMagic = 12583039.0f;
// Coefficients of f, f^2, ... With the fp32 evaluation the relative error is below 8e-8 (1.4 units of 2^-24).
inline constexpr float kExp2[] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6aee8p-5f,
                                  0x1.3b2d4cp-7f, 0x1.5f3e54p-10f, 0x1.41fbbcp-13f};
// Relative error below 3e-6 (2^-18.4): for weights that become 16-bit fixed point.
inline constexpr float kExp2ToFixed[] = {0x1.62e12ap-1f, 0x1.ec0382p-3f, 0x1.c9fd1ep-5f, 0x1.3a007ap-7f};
// Relative error below 1.1e-4 (2^-13.2), for weights that become bf16: 2^x is 2^floor(x) times the polynomial
// of f = x - floor(x) in [0, 1], which is 1 at 0 and 2 at 1.
inline constexpr float kExp2ToBf16[] = {0x1.640ea4p-1f, 0x1.cf7ac2p-3f, 0x1.409564p-4f};
// Below this, weights of attention are 0: 2^x would leave the normal numbers.
inline constexpr float kExp2Smallest = -125.0f;
// With fixed-point products weights below this are 0, and with bf16 products x is not less than this:
// otherwise a weight times a small scale would be subnormal, which is slow on Intel's processors.
inline constexpr float kExp2SmallestScaled = -100.0f;

// log2(e) as a sum of two floats.
inline constexpr float kLog2eHigh = 0x1.715476p+0f;
inline constexpr float kLog2eLow = 0x1.4ae0c0p-26f;
// silu clamps the exponent of e^-gate to +-this: beyond it silu is gate, or below 1e-35 in magnitude.
inline constexpr float kSiluClamp = 125.0f;

// gelu_tanh is x * sigmoid(x (kGeluTanhLinear + kGeluTanhCubic x^2)): 2 sqrt(2 / pi), and that times
// 0.044715.
inline constexpr float kGeluTanhLinear = 0x1.988454p+0f;
inline constexpr float kGeluTanhCubic = 0x1.2444f2p-4f;
// gelu_erf: the normal distribution's tail Phi(-a), a >= 0, is e^(-a^2 / 2) P(a) / Q(a), a minimax fit of the
// relative error, which is below 1.2e-8 (0.2 units of 2^-24) where the tail is not 0. Constant term first.
inline constexpr float kTailP[] = {0x1.000000p-1f, 0x1.bc9840p-2f, 0x1.70fd24p-3f, 0x1.445f0ep-5f,
                                   0x1.039736p-8f};
inline constexpr float kTailQ[] = {0x1.000000p+0f, 0x1.aa8e4ep+0f, 0x1.3096b6p+0f,
                                   0x1.d872ccp-2f, 0x1.969242p-4f, 0x1.4557f4p-7f};
// Below e^this the tail is 0, so that no intermediate value is subnormal, and gelu_erf is below 1e-36 in
// magnitude.
inline constexpr float kTailSmallest = -120.0f / kLog2eHigh;
// swiglu_oai.
inline constexpr float kSwigluLimit = 7.0f;
inline constexpr float kSwigluSteepness = 1.702f;

// tanh(x) = m / (m + 2) with m = e^(2 x) - 1 and 2 x clamped to +-this, where tanh has long been +-1.
inline constexpr float kTanhClamp = 40.0f;

// Lane l of a sum takes elements l, l + lanes, ... in ascending order; then the upper half of the lanes is
// added to the lower until one is left.
inline constexpr int kNormLanes = 64;
inline constexpr int kSoftmaxLanes = 16;

}  // namespace redoubt
