"""Losses of the zoo: one file per method, one line per method in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.losses":
    raise ImportError(
        f"import zoo.losses, not {__name__}: two copies of a class would not be equal"
    )

BUILTIN: dict[str, dict[str, str]] = {
    "losses": {
        "a_bier": "zoo.losses.a_bier:ABIERLoss",
        "abe": "zoo.losses.abe:ABELoss",
        "am_softmax": "zoo.losses.am_softmax:AMSoftmaxLoss",
        "angular": "zoo.losses.angular:AngularLoss",
        "arcface": "zoo.losses.arcface:ArcFaceLoss",
        "bier": "zoo.losses.bier:BIERLoss",
        "binomial_deviance": "zoo.losses.binomial_deviance:BinomialDevianceLoss",
        "cce": "zoo.losses.cce:CCELoss",
        "center": "zoo.losses.center:CenterLoss",
        "circle": "zoo.losses.circle:CircleLoss",
        "contrastive": "zoo.losses.contrastive:ContrastiveLoss",
        "cosface": "zoo.losses.cosface:CosFaceLoss",
        "daml": "zoo.losses.daml:DAMLLoss",
        "dreml": "zoo.losses.dreml:DREMLLoss",
        "drpr": "zoo.losses.drpr:DRPRLoss",
        "dvml": "zoo.losses.dvml:DVMLLoss",
        "fastap": "zoo.losses.fastap:FastAPLoss",
        "hdc_cascade": "zoo.losses.hdc_cascade:HDCCascadeLoss",
        "hdml": "zoo.losses.hdml:HDMLLoss",
        "heated_up": "zoo.losses.heated_up:HeatedUpLoss",
        "histogram": "zoo.losses.histogram:HistogramLoss",
        "ice": "zoo.losses.ice:ICELoss",
        "lifted_struct": "zoo.losses.lifted_struct:LiftedStructLoss",
        "log_ratio": "zoo.losses.log_ratio:LogRatioLoss",
        "margin": "zoo.losses.margin:MarginLoss",
        "matching_net": "zoo.losses.matching_net:MatchingNetLoss",
        "matching_net_fce": "zoo.losses.matching_net_fce:MatchingNetFCELoss",
        "multi_similarity": "zoo.losses.multi_similarity:MultiSimilarityLoss",
        "nca": "zoo.losses.nca:NCALoss",
        "normface": "zoo.losses.normface:NormFaceLoss",
        "npair_mc": "zoo.losses.npair_mc:NPairMCLoss",
        "ntxent": "zoo.losses.ntxent:NTXentLoss",
        "osm_caa": "zoo.losses.osm_caa:OSMCAALoss",
        "pddm": "zoo.losses.pddm:PDDMLoss",
        "prototypical": "zoo.losses.prototypical:PrototypicalLoss",
        "proxy_anchor": "zoo.losses.proxy_anchor:ProxyAnchorLoss",
        "proxy_nca": "zoo.losses.proxy_nca:ProxyNCALoss",
        "rll": "zoo.losses.rll:RLLoss",
        "s2sd": "zoo.losses.s2sd:S2SDLoss",
        "scalable_nca": "zoo.losses.scalable_nca:ScalableNCALoss",
        "snr": "zoo.losses.snr:SNRLoss",
        "soft_triple": "zoo.losses.soft_triple:SoftTripleLoss",
        "spectral_clust": "zoo.losses.spectral_clust:SpectralClustLoss",
        "sphereface": "zoo.losses.sphereface:SphereFaceLoss",
        "struct_clust": "zoo.losses.struct_clust:StructClustLoss",
        "supcon": "zoo.losses.supcon:SupConLoss",
        "tadam": "zoo.losses.tadam:TADAMLoss",
        "tadam_conditioned": "zoo.losses.tadam_conditioned:TADAMConditionedLoss",
        "triplet_semihard": "zoo.losses.triplet_semihard:TripletSemihardLoss",
    },
}

# Classes that replace those of pytorch-metric-learning under `pml.<ClassName>`, as these lack
# something that a run needs.
PML: dict[str, str] = {"CrossBatchMemory": "zoo.losses._memory:CrossBatchMemory"}
