"""Miners of the zoo: one file per method, one line per method in BUILTIN."""

from __future__ import annotations

if __name__ != "zoo.miners":
    raise ImportError(f"import zoo.miners, not {__name__}")

BUILTIN: dict[str, dict[str, str]] = {
    "miners": {
        "angular": "zoo.miners.angular:AngularMiner",
        "batch_easy_hard": "zoo.miners.batch_easy_hard:BatchEasyHardMiner",
        "batch_hard": "zoo.miners.batch_hard:BatchHardMiner",
        "distance_weighted": "zoo.miners.distance_weighted:DistanceWeightedMiner",
        "hard_triplet": "zoo.miners.hard_triplet:HardTripletMiner",
        "hdc": "zoo.miners.hdc:HDCMiner",
        "moderate_positive": "zoo.miners.moderate_positive:ModeratePositiveMiner",
        "multi_similarity": "zoo.miners.multi_similarity:MultiSimilarityMiner",
        "pair_margin": "zoo.miners.pair_margin:PairMarginMiner",
        "semihard": "zoo.miners.semihard:SemihardMiner",
        "uniform_histogram": "zoo.miners.uniform_histogram:UniformHistogramMiner",
    },
    "samplers": {
        "hard_class": "zoo.miners.hard_class:HardClassSampler",
    },
}
