/* What epilogues compute with: the less and the greater of two numbers, NaN where either is. */
template <class T> CUTLASS_DEVICE T least(T a, T b)
{
    return a != a || a < b ? a : b;
}

template <class T> CUTLASS_DEVICE T greatest(T a, T b)
{
    return a != a || a > b ? a : b;
}
