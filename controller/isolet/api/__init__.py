"""The resources of `isolet.dev/v1alpha1` as types, and the CRDs made from them."""
