"""The methods compared, as changes of model.Config."""

METHODS = {
    "fpa": {},
    "fpa-tied": {"level_kind": "tied"},
    "fox": {"field_activation": "log_sigmoid", "level_kind": "tied", "learned_slope": False},
    "softmax-rope": {"field_kind": "none", "rope_theta": 10000.0},
}
