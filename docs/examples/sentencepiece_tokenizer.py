"""Convert a SentencePiece model (BPE with byte fallback, no space before a text) to tokenizer.json.

pip install sentencepiece
python docs/examples/sentencepiece_tokenizer.py fineweb_1024_bpe.model tokenizer.json
"""

import sys
from pathlib import Path

from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

NORMAL, UNKNOWN, CONTROL = 1, 2, 3  # types of pieces


def convert(proto: sentencepiece_model_pb2.ModelProto) -> Tokenizer:
    """The tokenizer with the vocabulary and merges of a SentencePiece model."""
    vocab = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    score = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL}
    splits = [
        (p[:i], p[i:]) for p in score for i in range(1, len(p)) if p[:i] in score and p[i:] in score
    ]
    splits.sort(key=lambda pair: (-score["".join(pair)], vocab[pair[0]], vocab[pair[1]]))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=splits, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    normal = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    tokenizer.normalizer = normalizers.Sequence(
        [normal, normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = [piece.piece for piece in proto.pieces if piece.type in (UNKNOWN, CONTROL)]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in special]
    )
    return tokenizer


if __name__ == "__main__":
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(Path(sys.argv[1]).read_bytes())
    convert(model).save(sys.argv[2])
