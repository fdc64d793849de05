"""Losses of the zoo: one file per method, one line per method in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.losses":
    raise ImportError(
        f"import zoo.losses, not {__name__}: two copies of a class would not be equal"
    )

BUILTIN: dict[str, dict[str, str]] = {
    "losses": {
        "adacos": "zoo.losses.adacos:AdaCosLoss",
        "adaface": "zoo.losses.adaface:AdaFaceLoss",
        "am_softmax": "zoo.losses.am_softmax:AMSoftmaxLoss",
        "angular": "zoo.losses.angular:AngularLoss",
        "arcface": "zoo.losses.arcface:ArcFaceLoss",
        "binomial_deviance": "zoo.losses.binomial_deviance:BinomialDevianceLoss",
        "blackbox_ap": "zoo.losses.blackbox_ap:BlackboxAPLoss",
        "cce": "zoo.losses.cce:CCELoss",
        "center": "zoo.losses.center:CenterLoss",
        "circle": "zoo.losses.circle:CircleLoss",
        "confidence_penalty": "zoo.losses.confidence_penalty:ConfidencePenaltyLoss",
        "contrastive": "zoo.losses.contrastive:ContrastiveLoss",
        "cosface": "zoo.losses.cosface:CosFaceLoss",
        "cross_batch_memory": "zoo.losses.cross_batch_memory:CrossBatchMemoryLoss",
        "curricularface": "zoo.losses.curricularface:CurricularFaceLoss",
        "drpr": "zoo.losses.drpr:DRPRLoss",
        "energy": "zoo.losses.energy:EnergyLoss",
        "fastap": "zoo.losses.fastap:FastAPLoss",
        "group_loss": "zoo.losses.group_loss:GroupLoss",
        "heated_up": "zoo.losses.heated_up:HeatedUpLoss",
        "hist": "zoo.losses.hist:HISTLoss",
        "histogram": "zoo.losses.histogram:HistogramLoss",
        "htl": "zoo.losses.htl:HTLLoss",
        "hyp_vit": "zoo.losses.hyp_vit:HypViTLoss",
        "hyperspherical_prototypes": "zoo.losses.hyperspherical_prototypes:HyperPrototypesLoss",
        "ice": "zoo.losses.ice:ICELoss",
        "intra_batch": "zoo.losses.intra_batch:IntraBatchLoss",
        "l_softmax": "zoo.losses.l_softmax:LSoftmaxLoss",
        "lifted_struct": "zoo.losses.lifted_struct:LiftedStructLoss",
        "log_ratio": "zoo.losses.log_ratio:LogRatioLoss",
        "lorentz": "zoo.losses.lorentz:LorentzLoss",
        "magface": "zoo.losses.magface:MagFaceLoss",
        "map_dlm": "zoo.losses.map_dlm:MAPDLMLoss",
        "map_ssvm": "zoo.losses.map_ssvm:MAPSSVMLoss",
        "margin": "zoo.losses.margin:MarginLoss",
        "matching_net": "zoo.losses.matching_net:MatchingNetLoss",
        "metrix": "zoo.losses.metrix:MetrixLoss",
        "multi_similarity": "zoo.losses.multi_similarity:MultiSimilarityLoss",
        "multibatch": "zoo.losses.multibatch:MultibatchLoss",
        "nca": "zoo.losses.nca:NCALoss",
        "normface": "zoo.losses.normface:NormFaceLoss",
        "npair_mc": "zoo.losses.npair_mc:NPairMCLoss",
        "ntxent": "zoo.losses.ntxent:NTXentLoss",
        "osm_caa": "zoo.losses.osm_caa:OSMCAALoss",
        "prototypical": "zoo.losses.prototypical:PrototypicalLoss",
        "proxy_anchor": "zoo.losses.proxy_anchor:ProxyAnchorLoss",
        "proxy_gml": "zoo.losses.proxy_gml:ProxyGMLLoss",
        "proxy_nca": "zoo.losses.proxy_nca:ProxyNCALoss",
        "proxy_nca_pp": "zoo.losses.proxy_nca_pp:ProxyNCAPPLoss",
        "recall_surrogate": "zoo.losses.recall_surrogate:RecallSurrogateLoss",
        "rll": "zoo.losses.rll:RLLoss",
        "roadmap": "zoo.losses.roadmap:ROADMAPLoss",
        "scalable_nca": "zoo.losses.scalable_nca:ScalableNCALoss",
        "siglip": "zoo.losses.siglip:SigLIPLoss",
        "smooth_ap": "zoo.losses.smooth_ap:SmoothAPLoss",
        "snr": "zoo.losses.snr:SNRLoss",
        "soft_triple": "zoo.losses.soft_triple:SoftTripleLoss",
        "spectral_clust": "zoo.losses.spectral_clust:SpectralClustLoss",
        "sphereface": "zoo.losses.sphereface:SphereFaceLoss",
        "struct_clust": "zoo.losses.struct_clust:StructClustLoss",
        "subcenter_arcface": "zoo.losses.subcenter_arcface:SubCenterArcFaceLoss",
        "supcon": "zoo.losses.supcon:SupConLoss",
        "tadam": "zoo.losses.tadam:TADAMLoss",
        "tcm": "zoo.losses.tcm:TCMLoss",
        "triplet_semihard": "zoo.losses.triplet_semihard:TripletSemihardLoss",
    },
}

# Classes that replace those of pytorch-metric-learning under `pml.<ClassName>`, as these lack
# something that a run needs.
PML: dict[str, str] = {"CrossBatchMemory": "zoo.losses._memory:CrossBatchMemory"}
