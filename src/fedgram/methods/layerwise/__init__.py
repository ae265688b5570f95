"""Networks solved layer by layer, without gradients."""
