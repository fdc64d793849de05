"""Losses of the zoo: one file per method, one line per method in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.losses":
    raise ImportError(
        f"import zoo.losses, not {__name__}: two copies of a class would not be equal"
    )

BUILTIN: dict[str, dict[str, str]] = {
    "losses": {
        "cce": "zoo.losses.cce:CCELoss",
        "ice": "zoo.losses.ice:ICELoss",
        "lifted_struct": "zoo.losses.lifted_struct:LiftedStructLoss",
        "npair_mc": "zoo.losses.npair_mc:NPairMCLoss",
        "proxy_nca": "zoo.losses.proxy_nca:ProxyNCALoss",
        "rll": "zoo.losses.rll:RLLoss",
        "spectral_clust": "zoo.losses.spectral_clust:SpectralClustLoss",
        "struct_clust": "zoo.losses.struct_clust:StructClustLoss",
        "triplet_semihard": "zoo.losses.triplet_semihard:TripletSemihardLoss",
    },
}
