import torch
import torch.nn.functional as F


class CosineContrastiveLoss(torch.nn.Module):
    """Bring the cosines of positives to 1, those of negatives below a margin."""

    paper = "Hadsell et al. 2006, Dimensionality Reduction by Learning an Invariant Mapping"
    kind = "pair"
    cost = "N²"
    gallery = mined = False

    def __init__(self, margin: float = 0.5) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        if indices_tuple is not None or ref_emb is not None:
            raise ValueError("this loss takes neither mined pairs nor a gallery")
        f = F.normalize(embeddings.float() if embeddings.dtype.itemsize < 4 else embeddings)
        same = labels[:, None] == labels
        hinges = torch.where(same, 1 - f @ f.T, F.relu(f @ f.T - self.margin))
        return hinges.fill_diagonal_(0).sum() / max(1, len(f) * (len(f) - 1))
