/* Functions for epilogues: the minimum and maximum of two numbers, NaN if either is NaN. */
template <class T> CUTLASS_DEVICE T least(T a, T b)
{
    return a != a || a < b ? a : b;
}

template <class T> CUTLASS_DEVICE T greatest(T a, T b)
{
    return a != a || a > b ? a : b;
}
