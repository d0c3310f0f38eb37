"""The pairwise table: each value of every axis beside each value of every other one.

Written out, so that a case has a name and stays what it is; `test_the_table_holds_every_pair`
says when a line is missing. Most lines are with `jit_compile`, since JAX without it compiles every
operation by itself. `DataLoader` lines run on PyTorch, which has no `jit_compile`.
"""

from tests.exact.case import Case

TABLE = """
form              batch rows jit   situation
arrays                7    6 jit   metrics and weighted_metrics
tf.data-known        64   64 jit   metrics and weighted_metrics
tf.data-unknown      50    1 jit   metrics and weighted_metrics
tf.data-rebatched  1000 1001 jit   metrics and weighted_metrics
PyDataset            50 1001 jit   metrics and weighted_metrics
PyDataset-workers    64   65 jit   metrics and weighted_metrics
re-iterable-steps  1000 1001 plain metrics and weighted_metrics
DataLoader         1000 1001 jit   metrics and weighted_metrics
arrays               50   50 jit   classes, F1Score
tf.data-known      1000 1001 jit   classes, F1Score
tf.data-unknown    1000 1000 jit   classes, F1Score
tf.data-rebatched    64   63 plain classes, F1Score
PyDataset             7    7 jit   classes, F1Score
PyDataset-workers    50    1 jit   classes, F1Score
re-iterable-steps    64 1001 jit   classes, F1Score
DataLoader            7    1 jit   classes, F1Score
arrays               50   51 jit   compute_loss
tf.data-known         7    1 jit   compute_loss
tf.data-unknown       7    6 jit   compute_loss
tf.data-rebatched     7    7 plain compute_loss
PyDataset            64    1 jit   compute_loss
PyDataset-workers  1000 1001 jit   compute_loss
re-iterable-steps     7    7 jit   compute_loss
DataLoader           50   49 jit   compute_loss
arrays             1000    1 jit   compute_loss without a compiled loss
tf.data-known        50   50 plain compute_loss without a compiled loss
tf.data-unknown      64   64 jit   compute_loss without a compiled loss
tf.data-rebatched  1000  999 jit   compute_loss without a compiled loss
PyDataset          1000 1001 jit   compute_loss without a compiled loss
PyDataset-workers     7    6 jit   compute_loss without a compiled loss
re-iterable-steps    50    1 jit   compute_loss without a compiled loss
DataLoader           50   50 jit   compute_loss without a compiled loss
arrays                7    8 jit   subclassed model, compute_metrics
tf.data-known        64    1 jit   subclassed model, compute_metrics
tf.data-unknown    1000 1001 jit   subclassed model, compute_metrics
tf.data-rebatched    50    1 plain subclassed model, compute_metrics
PyDataset             7    6 jit   subclassed model, compute_metrics
PyDataset-workers     7    7 jit   subclassed model, compute_metrics
re-iterable-steps    64   65 jit   subclassed model, compute_metrics
DataLoader           50   49 jit   subclassed model, compute_metrics
arrays               64 1001 jit   test_step
tf.data-known        50   49 jit   test_step
tf.data-unknown    1000 1001 jit   test_step
tf.data-rebatched  1000    1 jit   test_step
PyDataset             7    7 plain test_step
PyDataset-workers  1000 1000 jit   test_step
re-iterable-steps     7    6 jit   test_step
DataLoader           64   65 jit   test_step
arrays                7 1001 jit   mixed_float16
tf.data-known        64   64 jit   mixed_float16
tf.data-unknown      50   51 plain mixed_float16
tf.data-rebatched     7    6 jit   mixed_float16
PyDataset          1000 1000 jit   mixed_float16
PyDataset-workers  1000 1001 jit   mixed_float16
re-iterable-steps    64    1 jit   mixed_float16
DataLoader           50   50 jit   mixed_float16
arrays               64   65 jit   mixed_bfloat16
tf.data-known        50    1 jit   mixed_bfloat16
tf.data-unknown    1000 1001 jit   mixed_bfloat16
tf.data-rebatched    50   51 jit   mixed_bfloat16
PyDataset          1000 1001 jit   mixed_bfloat16
PyDataset-workers     7    6 plain mixed_bfloat16
re-iterable-steps    64   64 jit   mixed_bfloat16
DataLoader           64   63 jit   mixed_bfloat16
arrays               50   51 plain moving averages of the weights
tf.data-known        64   64 jit   moving averages of the weights
tf.data-unknown       7    6 jit   moving averages of the weights
tf.data-rebatched     7    8 jit   moving averages of the weights
PyDataset          1000 1001 jit   moving averages of the weights
PyDataset-workers  1000    1 jit   moving averages of the weights
re-iterable-steps    64   65 jit   moving averages of the weights
DataLoader         1000 1000 jit   moving averages of the weights
arrays             1000 1001 jit   reductions, weights [n] and [n,1]
tf.data-known         7    7 jit   reductions, weights [n] and [n,1]
tf.data-unknown      50   49 jit   reductions, weights [n] and [n,1]
tf.data-rebatched  1000 1001 jit   reductions, weights [n] and [n,1]
PyDataset            64 1001 plain reductions, weights [n] and [n,1]
PyDataset-workers     7    1 jit   reductions, weights [n] and [n,1]
re-iterable-steps    50   51 jit   reductions, weights [n] and [n,1]
DataLoader         1000  999 jit   reductions, weights [n] and [n,1]
arrays                7    1 jit   reductions, weights [n,time]
tf.data-known      1000 1001 jit   reductions, weights [n,time]
tf.data-unknown      50   50 jit   reductions, weights [n,time]
tf.data-rebatched    64   65 plain reductions, weights [n,time]
PyDataset          1000  999 jit   reductions, weights [n,time]
PyDataset-workers     7    7 jit   reductions, weights [n,time]
re-iterable-steps    50   51 jit   reductions, weights [n,time]
DataLoader           64   65 jit   reductions, weights [n,time]
arrays                7    7 jit   sum, weights [n]
tf.data-known         7    7 jit   sum, weights [n]
tf.data-unknown    1000 1001 jit   sum, weights [n]
tf.data-rebatched    64   63 jit   sum, weights [n]
PyDataset            50   51 plain sum, weights [n]
PyDataset-workers    64    1 jit   sum, weights [n]
re-iterable-steps  1000 1001 jit   sum, weights [n]
DataLoader           64   63 jit   sum, weights [n]
arrays             1000 1001 plain mean_with_sample_weight, weights [n]
tf.data-known        50   50 jit   mean_with_sample_weight, weights [n]
tf.data-unknown      64   63 jit   mean_with_sample_weight, weights [n]
tf.data-rebatched     7    1 jit   mean_with_sample_weight, weights [n]
PyDataset            64   65 jit   mean_with_sample_weight, weights [n]
PyDataset-workers    50   50 jit   mean_with_sample_weight, weights [n]
re-iterable-steps     7    8 jit   mean_with_sample_weight, weights [n]
DataLoader           64   64 jit   mean_with_sample_weight, weights [n]
arrays               50   51 jit   L2 regularisers
tf.data-known        50   49 jit   L2 regularisers
tf.data-unknown    1000 1001 jit   L2 regularisers
tf.data-rebatched    64 1001 plain L2 regularisers
PyDataset             7    1 jit   L2 regularisers
PyDataset-workers     7    8 jit   L2 regularisers
re-iterable-steps  1000 1000 jit   L2 regularisers
DataLoader           64   63 jit   L2 regularisers
arrays               50   51 jit   inputs and outputs by name, loss weights
tf.data-known        64   64 jit   inputs and outputs by name, loss weights
tf.data-unknown       7    6 jit   inputs and outputs by name, loss weights
tf.data-rebatched    50   51 jit   inputs and outputs by name, loss weights
PyDataset             7    1 jit   inputs and outputs by name, loss weights
PyDataset-workers  1000 1001 plain inputs and outputs by name, loss weights
re-iterable-steps    64   64 jit   inputs and outputs by name, loss weights
DataLoader            7    8 jit   inputs and outputs by name, loss weights
arrays               64 1001 plain several inputs, an output without a loss, its target given
tf.data-known         7    8 jit   several inputs, an output without a loss, its target given
tf.data-unknown    1000 1001 jit   several inputs, an output without a loss, its target given
tf.data-rebatched     7    6 jit   several inputs, an output without a loss, its target given
PyDataset          1000 1001 jit   several inputs, an output without a loss, its target given
PyDataset-workers    50   50 jit   several inputs, an output without a loss, its target given
re-iterable-steps    50    1 jit   several inputs, an output without a loss, its target given
DataLoader           50   51 jit   several inputs, an output without a loss, its target given
arrays               50   50 jit   an output without a loss, its target None
tf.data-known        50   51 jit   an output without a loss, its target None
tf.data-unknown    1000  999 jit   an output without a loss, its target None
tf.data-rebatched     7    8 jit   an output without a loss, its target None
PyDataset            64 1001 plain an output without a loss, its target None
PyDataset-workers  1000    1 jit   an output without a loss, its target None
re-iterable-steps     7    7 jit   an output without a loss, its target None
arrays               64 1001 jit   an output without a loss, left out of a list
tf.data-known        50   49 jit   an output without a loss, left out of a list
tf.data-unknown      50   50 jit   an output without a loss, left out of a list
tf.data-rebatched     7    8 plain an output without a loss, left out of a list
PyDataset            64    1 jit   an output without a loss, left out of a list
PyDataset-workers  1000 1001 jit   an output without a loss, left out of a list
re-iterable-steps  1000 1000 jit   an output without a loss, left out of a list
DataLoader         1000 1000 jit   an output without a loss, left out of a list
arrays             1000 1001 jit   an output without a loss, left out by name
tf.data-known      1000 1001 jit   an output without a loss, left out by name
tf.data-unknown      64   63 jit   an output without a loss, left out by name
tf.data-rebatched    50   50 jit   an output without a loss, left out by name
PyDataset          1000 1001 jit   an output without a loss, left out by name
PyDataset-workers    64    1 jit   an output without a loss, left out by name
re-iterable-steps     7    8 plain an output without a loss, left out by name
DataLoader           64   64 jit   an output without a loss, left out by name
arrays               50   49 jit   mask
tf.data-known      1000 1001 jit   mask
tf.data-unknown      64   65 jit   mask
tf.data-rebatched     7    8 plain mask
PyDataset          1000 1001 jit   mask
PyDataset-workers    50    1 jit   mask
re-iterable-steps    64   64 jit   mask
DataLoader           50 1001 jit   mask
arrays               64 1001 plain mask, reductions, weights [n,time]
tf.data-known      1000 1001 jit   mask, reductions, weights [n,time]
tf.data-unknown       7    8 jit   mask, reductions, weights [n,time]
tf.data-rebatched    50   50 jit   mask, reductions, weights [n,time]
PyDataset             7    7 jit   mask, reductions, weights [n,time]
PyDataset-workers    50    1 jit   mask, reductions, weights [n,time]
re-iterable-steps  1000  999 jit   mask, reductions, weights [n,time]
DataLoader           50   49 jit   mask, reductions, weights [n,time]
arrays               64   63 jit   mask into an RNN
tf.data-known        64 1001 jit   mask into an RNN
tf.data-unknown    1000  999 jit   mask into an RNN
tf.data-rebatched     7    1 jit   mask into an RNN
PyDataset            50   51 plain mask into an RNN
PyDataset-workers  1000 1001 jit   mask into an RNN
re-iterable-steps     7    7 jit   mask into an RNN
DataLoader            7    1 jit   mask into an RNN
arrays               64   64 jit   stateful RNN
tf.data-known        64 1001 jit   stateful RNN
tf.data-unknown       7    8 plain stateful RNN
tf.data-rebatched    50   51 jit   stateful RNN
PyDataset          1000 1001 jit   stateful RNN
PyDataset-workers    50   49 jit   stateful RNN
re-iterable-steps    50    1 jit   stateful RNN
DataLoader           50    1 jit   stateful RNN
arrays                7    6 jit   add_loss, ActivityRegularization
tf.data-known         7    7 jit   add_loss, ActivityRegularization
tf.data-unknown    1000 1001 jit   add_loss, ActivityRegularization
tf.data-rebatched    50    1 jit   add_loss, ActivityRegularization
PyDataset            64   65 plain add_loss, ActivityRegularization
PyDataset-workers  1000 1001 jit   add_loss, ActivityRegularization
re-iterable-steps    50   51 jit   add_loss, ActivityRegularization
DataLoader           50    1 jit   add_loss, ActivityRegularization
arrays                7    6 jit   Dice
tf.data-known        64 1001 plain Dice
tf.data-unknown    1000 1001 jit   Dice
tf.data-rebatched    50   51 jit   Dice
PyDataset            50   50 jit   Dice
PyDataset-workers  1000    1 jit   Dice
re-iterable-steps  1000 1001 jit   Dice
DataLoader            7    1 jit   Dice
arrays               50   50 jit   Tversky
tf.data-known      1000 1000 jit   Tversky
tf.data-unknown      50   49 jit   Tversky
tf.data-rebatched     7    1 jit   Tversky
PyDataset          1000 1001 jit   Tversky
PyDataset-workers    64 1001 plain Tversky
re-iterable-steps     7    8 jit   Tversky
DataLoader         1000  999 jit   Tversky
arrays                7    8 jit   Circle
tf.data-known        50   50 jit   Circle
tf.data-unknown    1000 1001 jit   Circle
tf.data-rebatched    64 1001 plain Circle
PyDataset             7    6 jit   Circle
PyDataset-workers    50   51 jit   Circle
re-iterable-steps     7    1 jit   Circle
DataLoader           50   51 jit   Circle
arrays                7    6 jit   functions with one number per batch: loss, metric
tf.data-known        64    1 jit   functions with one number per batch: loss, metric
tf.data-unknown    1000 1000 jit   functions with one number per batch: loss, metric
tf.data-rebatched    64   65 jit   functions with one number per batch: loss, metric
PyDataset            50   51 plain functions with one number per batch: loss, metric
PyDataset-workers  1000 1001 jit   functions with one number per batch: loss, metric
re-iterable-steps  1000 1001 jit   functions with one number per batch: loss, metric
DataLoader            7    1 jit   functions with one number per batch: loss, metric
arrays                7    8 jit   a loss function that is no mean
tf.data-known        64   65 jit   a loss function that is no mean
tf.data-unknown       7    6 jit   a loss function that is no mean
tf.data-rebatched    50 1001 jit   a loss function that is no mean
PyDataset            50    1 jit   a loss function that is no mean
PyDataset-workers    64   64 jit   a loss function that is no mean
re-iterable-steps  1000 1001 plain a loss function that is no mean
DataLoader         1000    1 jit   a loss function that is no mean
arrays               64 1001 plain compute_loss that is no mean
tf.data-known        50   50 jit   compute_loss that is no mean
tf.data-unknown      50   49 jit   compute_loss that is no mean
tf.data-rebatched     7    8 jit   compute_loss that is no mean
PyDataset          1000    1 jit   compute_loss that is no mean
PyDataset-workers  1000  999 jit   compute_loss that is no mean
re-iterable-steps     7    7 jit   compute_loss that is no mean
DataLoader           64    1 jit   compute_loss that is no mean
"""


def cases(torch: bool) -> list[Case]:
    """Returns the cases of the table that a backend runs."""
    lines = [line.split(maxsplit=4) for line in TABLE.strip().splitlines()[1:]]
    return [
        Case(form, int(batch_size), int(rows), situation, jit == "jit" and not torch)
        for form, batch_size, rows, jit, situation in lines
        if torch or form != "DataLoader"
    ]
