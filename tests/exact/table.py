"""The pairwise table: each value of every axis beside each value of every other one.

Written out, so that a case has a name and stays what it is; `test_the_table_holds_every_pair`
says when a line is missing. Most lines are with `jit_compile`, since JAX without it compiles every
operation by itself. `DataLoader` lines run on PyTorch, which has no `jit_compile`.
"""

from tests.exact.case import Case

TABLE = """
form              batch rows jit   situation
arrays                7    1 plain metrics and weighted_metrics
tf.data-known        50   49 jit   metrics and weighted_metrics
tf.data-unknown      64   64 jit   metrics and weighted_metrics
tf.data-rebatched  1000 1001 jit   metrics and weighted_metrics
PyDataset             7 1001 jit   metrics and weighted_metrics
PyDataset-workers    50    1 jit   metrics and weighted_metrics
re-iterable-steps    64   63 jit   metrics and weighted_metrics
DataLoader         1000 1000 jit   metrics and weighted_metrics
arrays               50   50 jit   F1Score
tf.data-known        64   65 jit   F1Score
tf.data-unknown    1000 1001 jit   F1Score
tf.data-rebatched     7    1 plain F1Score
PyDataset            50   49 jit   F1Score
PyDataset-workers    64   64 jit   F1Score
re-iterable-steps  1000 1001 jit   F1Score
DataLoader            7 1001 jit   F1Score
arrays               64 1001 jit   integer labels
tf.data-known      1000    1 jit   integer labels
tf.data-unknown       7    6 jit   integer labels
tf.data-rebatched    50   50 jit   integer labels
PyDataset            64   65 jit   integer labels
PyDataset-workers  1000 1001 jit   integer labels
re-iterable-steps     7    1 plain integer labels
DataLoader           50   49 jit   integer labels
arrays             1000  999 jit   subclassed model
tf.data-known         7    7 jit   subclassed model
tf.data-unknown      50   51 plain subclassed model
tf.data-rebatched    64 1001 jit   subclassed model
PyDataset          1000    1 jit   subclassed model
PyDataset-workers     7    6 jit   subclassed model
re-iterable-steps    50   50 jit   subclassed model
DataLoader           64   65 jit   subclassed model
arrays                7    8 jit   compute_loss
tf.data-known        50 1001 jit   compute_loss
tf.data-unknown      64    1 jit   compute_loss
tf.data-rebatched  1000  999 jit   compute_loss
PyDataset             7    7 jit   compute_loss
PyDataset-workers    50   51 plain compute_loss
re-iterable-steps    64 1001 jit   compute_loss
DataLoader         1000    1 jit   compute_loss
arrays               50   49 jit   compute_loss without a compiled loss
tf.data-known        64   64 plain compute_loss without a compiled loss
tf.data-unknown    1000 1001 jit   compute_loss without a compiled loss
tf.data-rebatched     7 1001 jit   compute_loss without a compiled loss
PyDataset            50    1 jit   compute_loss without a compiled loss
PyDataset-workers    64   63 jit   compute_loss without a compiled loss
re-iterable-steps  1000 1000 jit   compute_loss without a compiled loss
DataLoader            7    8 jit   compute_loss without a compiled loss
arrays               64   65 jit   compute_metrics
tf.data-known      1000 1001 jit   compute_metrics
tf.data-unknown       7    1 jit   compute_metrics
tf.data-rebatched    50   49 jit   compute_metrics
PyDataset            64   64 plain compute_metrics
PyDataset-workers  1000 1001 jit   compute_metrics
re-iterable-steps     7 1001 jit   compute_metrics
DataLoader           50    1 jit   compute_metrics
arrays             1000    1 jit   test_step
tf.data-known         7    6 plain test_step
tf.data-unknown      50   50 jit   test_step
tf.data-rebatched    64   65 jit   test_step
PyDataset          1000 1001 jit   test_step
PyDataset-workers     7    1 jit   test_step
re-iterable-steps    50   49 jit   test_step
DataLoader           64   64 jit   test_step
arrays                7    7 jit   mixed_float16
tf.data-known        50   51 jit   mixed_float16
tf.data-unknown      64 1001 jit   mixed_float16
tf.data-rebatched  1000    1 jit   mixed_float16
PyDataset             7    6 plain mixed_float16
PyDataset-workers    50   50 jit   mixed_float16
re-iterable-steps    64   65 jit   mixed_float16
DataLoader         1000 1001 jit   mixed_float16
arrays               50 1001 plain mixed_bfloat16
tf.data-known        64    1 jit   mixed_bfloat16
tf.data-unknown    1000  999 jit   mixed_bfloat16
tf.data-rebatched     7    7 jit   mixed_bfloat16
PyDataset            50   51 jit   mixed_bfloat16
PyDataset-workers    64 1001 jit   mixed_bfloat16
re-iterable-steps  1000    1 jit   mixed_bfloat16
DataLoader            7    6 jit   mixed_bfloat16
arrays               64   64 jit   moving averages of the weights
tf.data-known      1000 1001 jit   moving averages of the weights
tf.data-unknown       7 1001 jit   moving averages of the weights
tf.data-rebatched    50    1 plain moving averages of the weights
PyDataset            64   63 jit   moving averages of the weights
PyDataset-workers  1000 1000 jit   moving averages of the weights
re-iterable-steps     7    8 jit   moving averages of the weights
DataLoader           50 1001 jit   moving averages of the weights
arrays             1000 1001 jit   sum_over_batch_size
tf.data-known         7    1 jit   sum_over_batch_size
tf.data-unknown      50   49 jit   sum_over_batch_size
tf.data-rebatched    64   64 jit   sum_over_batch_size
PyDataset          1000 1001 jit   sum_over_batch_size
PyDataset-workers     7 1001 jit   sum_over_batch_size
re-iterable-steps    50    1 plain sum_over_batch_size
DataLoader           64   63 jit   sum_over_batch_size
arrays                7    6 jit   mean, weights [n,1]
tf.data-known        50   50 jit   mean, weights [n,1]
tf.data-unknown      64   65 plain mean, weights [n,1]
tf.data-rebatched  1000 1001 jit   mean, weights [n,1]
PyDataset             7    1 jit   mean, weights [n,1]
PyDataset-workers    50   49 jit   mean, weights [n,1]
re-iterable-steps    64   64 jit   mean, weights [n,1]
DataLoader         1000 1001 jit   mean, weights [n,1]
arrays               50   51 jit   sum, weights [n]
tf.data-known        64 1001 jit   sum, weights [n]
tf.data-unknown    1000    1 jit   sum, weights [n]
tf.data-rebatched     7    6 jit   sum, weights [n]
PyDataset            50   50 jit   sum, weights [n]
PyDataset-workers    64   65 plain sum, weights [n]
re-iterable-steps  1000 1001 jit   sum, weights [n]
DataLoader            7    1 jit   sum, weights [n]
arrays               64    1 jit   mean_with_sample_weight, weights [n]
tf.data-known      1000  999 jit   mean_with_sample_weight, weights [n]
tf.data-unknown       7    7 plain mean_with_sample_weight, weights [n]
tf.data-rebatched    50   51 jit   mean_with_sample_weight, weights [n]
PyDataset            64 1001 jit   mean_with_sample_weight, weights [n]
PyDataset-workers  1000    1 jit   mean_with_sample_weight, weights [n]
re-iterable-steps     7    6 jit   mean_with_sample_weight, weights [n]
DataLoader           50   50 jit   mean_with_sample_weight, weights [n]
arrays             1000 1001 jit   sum_over_batch_size, weights [n,time]
tf.data-known         7 1001 jit   sum_over_batch_size, weights [n,time]
tf.data-unknown      50    1 jit   sum_over_batch_size, weights [n,time]
tf.data-rebatched    64   63 jit   sum_over_batch_size, weights [n,time]
PyDataset          1000 1000 jit   sum_over_batch_size, weights [n,time]
PyDataset-workers     7    8 plain sum_over_batch_size, weights [n,time]
re-iterable-steps    50 1001 jit   sum_over_batch_size, weights [n,time]
DataLoader           64    1 jit   sum_over_batch_size, weights [n,time]
arrays                7    1 jit   mean_with_sample_weight, weights [n,time]
tf.data-known        50   49 plain mean_with_sample_weight, weights [n,time]
tf.data-unknown      64   64 jit   mean_with_sample_weight, weights [n,time]
tf.data-rebatched  1000 1001 jit   mean_with_sample_weight, weights [n,time]
PyDataset             7 1001 jit   mean_with_sample_weight, weights [n,time]
PyDataset-workers    50    1 jit   mean_with_sample_weight, weights [n,time]
re-iterable-steps    64   63 jit   mean_with_sample_weight, weights [n,time]
DataLoader         1000 1000 jit   mean_with_sample_weight, weights [n,time]
arrays               50   50 jit   L2 regularisers
tf.data-known        64   65 jit   L2 regularisers
tf.data-unknown    1000 1001 jit   L2 regularisers
tf.data-rebatched     7    1 jit   L2 regularisers
PyDataset            50   49 plain L2 regularisers
PyDataset-workers    64   64 jit   L2 regularisers
re-iterable-steps  1000 1001 jit   L2 regularisers
DataLoader            7 1001 jit   L2 regularisers
arrays               64 1001 plain several inputs
tf.data-known      1000    1 jit   several inputs
tf.data-unknown       7    6 jit   several inputs
tf.data-rebatched    50   50 jit   several inputs
PyDataset            64   65 jit   several inputs
PyDataset-workers  1000 1001 jit   several inputs
re-iterable-steps     7    1 jit   several inputs
DataLoader           50   49 jit   several inputs
arrays             1000  999 jit   inputs and outputs by name, loss weights
tf.data-known         7    7 jit   inputs and outputs by name, loss weights
tf.data-unknown      50   51 jit   inputs and outputs by name, loss weights
tf.data-rebatched    64 1001 plain inputs and outputs by name, loss weights
PyDataset          1000    1 jit   inputs and outputs by name, loss weights
PyDataset-workers     7    6 jit   inputs and outputs by name, loss weights
re-iterable-steps    50   50 jit   inputs and outputs by name, loss weights
DataLoader           64   65 jit   inputs and outputs by name, loss weights
arrays                7 1001 jit   an output without a loss, its target given
tf.data-known        50    1 jit   an output without a loss, its target given
tf.data-unknown      64   63 jit   an output without a loss, its target given
tf.data-rebatched  1000 1000 jit   an output without a loss, its target given
PyDataset             7    8 jit   an output without a loss, its target given
PyDataset-workers    50 1001 jit   an output without a loss, its target given
re-iterable-steps    64    1 plain an output without a loss, its target given
DataLoader         1000  999 jit   an output without a loss, its target given
arrays               50   49 jit   an output without a loss, its target None
tf.data-known        64   64 jit   an output without a loss, its target None
tf.data-unknown    1000 1001 jit   an output without a loss, its target None
tf.data-rebatched     7 1001 plain an output without a loss, its target None
PyDataset            50    1 jit   an output without a loss, its target None
PyDataset-workers    64   63 jit   an output without a loss, its target None
re-iterable-steps  1000 1000 jit   an output without a loss, its target None
arrays               64   65 jit   an output without a loss, left out of a list
tf.data-known      1000 1001 jit   an output without a loss, left out of a list
tf.data-unknown       7    1 jit   an output without a loss, left out of a list
tf.data-rebatched    50   49 jit   an output without a loss, left out of a list
PyDataset            64   64 jit   an output without a loss, left out of a list
PyDataset-workers  1000 1001 jit   an output without a loss, left out of a list
re-iterable-steps     7 1001 plain an output without a loss, left out of a list
DataLoader           50    1 jit   an output without a loss, left out of a list
arrays             1000    1 jit   an output without a loss, left out by name
tf.data-known         7    6 jit   an output without a loss, left out by name
tf.data-unknown      50   50 plain an output without a loss, left out by name
tf.data-rebatched    64   65 jit   an output without a loss, left out by name
PyDataset          1000 1001 jit   an output without a loss, left out by name
PyDataset-workers     7    1 jit   an output without a loss, left out by name
re-iterable-steps    50   49 jit   an output without a loss, left out by name
DataLoader           64   64 jit   an output without a loss, left out by name
arrays                7    7 jit   mask
tf.data-known        50   51 jit   mask
tf.data-unknown      64 1001 jit   mask
tf.data-rebatched  1000    1 jit   mask
PyDataset             7    6 jit   mask
PyDataset-workers    50   50 plain mask
re-iterable-steps    64   65 jit   mask
DataLoader         1000 1001 jit   mask
arrays               50    1 jit   mask, mean, weights [n,time]
tf.data-known        64   63 plain mask, mean, weights [n,time]
tf.data-unknown    1000 1000 jit   mask, mean, weights [n,time]
tf.data-rebatched     7    8 jit   mask, mean, weights [n,time]
PyDataset            50 1001 jit   mask, mean, weights [n,time]
PyDataset-workers    64    1 jit   mask, mean, weights [n,time]
re-iterable-steps  1000  999 jit   mask, mean, weights [n,time]
DataLoader            7    7 jit   mask, mean, weights [n,time]
arrays               64   64 jit   mask, sum, weights [n,time]
tf.data-known      1000 1001 jit   mask, sum, weights [n,time]
tf.data-unknown       7 1001 jit   mask, sum, weights [n,time]
tf.data-rebatched    50    1 jit   mask, sum, weights [n,time]
PyDataset            64   63 plain mask, sum, weights [n,time]
PyDataset-workers  1000 1000 jit   mask, sum, weights [n,time]
re-iterable-steps     7    8 jit   mask, sum, weights [n,time]
DataLoader           50 1001 jit   mask, sum, weights [n,time]
arrays             1000 1001 plain mask, mean_with_sample_weight, weights [n,time]
tf.data-known         7    1 jit   mask, mean_with_sample_weight, weights [n,time]
tf.data-unknown      50   49 jit   mask, mean_with_sample_weight, weights [n,time]
tf.data-rebatched    64   64 jit   mask, mean_with_sample_weight, weights [n,time]
PyDataset          1000 1001 jit   mask, mean_with_sample_weight, weights [n,time]
PyDataset-workers     7 1001 jit   mask, mean_with_sample_weight, weights [n,time]
re-iterable-steps    50    1 jit   mask, mean_with_sample_weight, weights [n,time]
DataLoader           64   63 jit   mask, mean_with_sample_weight, weights [n,time]
arrays                7    6 jit   mask into an RNN
tf.data-known        50   50 jit   mask into an RNN
tf.data-unknown      64   65 jit   mask into an RNN
tf.data-rebatched  1000 1001 jit   mask into an RNN
PyDataset             7    1 plain mask into an RNN
PyDataset-workers    50   49 jit   mask into an RNN
re-iterable-steps    64   64 jit   mask into an RNN
DataLoader         1000 1001 jit   mask into an RNN
arrays               50   51 plain stateful RNN
tf.data-known        64 1001 jit   stateful RNN
tf.data-unknown    1000    1 jit   stateful RNN
tf.data-rebatched     7    6 jit   stateful RNN
PyDataset            50   50 jit   stateful RNN
PyDataset-workers    64   65 jit   stateful RNN
re-iterable-steps  1000 1001 jit   stateful RNN
DataLoader            7    1 jit   stateful RNN
arrays               64   63 jit   add_loss
tf.data-known      1000 1000 jit   add_loss
tf.data-unknown       7    8 jit   add_loss
tf.data-rebatched    50 1001 plain add_loss
PyDataset            64    1 jit   add_loss
PyDataset-workers  1000  999 jit   add_loss
re-iterable-steps     7    7 jit   add_loss
DataLoader           50   51 jit   add_loss
arrays             1000 1001 jit   ActivityRegularization
tf.data-known         7 1001 jit   ActivityRegularization
tf.data-unknown      50    1 jit   ActivityRegularization
tf.data-rebatched    64   63 jit   ActivityRegularization
PyDataset          1000 1000 jit   ActivityRegularization
PyDataset-workers     7    8 jit   ActivityRegularization
re-iterable-steps    50 1001 plain ActivityRegularization
DataLoader           64    1 jit   ActivityRegularization
arrays                7    1 jit   Dice
tf.data-known        50   49 jit   Dice
tf.data-unknown      64   64 plain Dice
tf.data-rebatched  1000 1001 jit   Dice
PyDataset             7 1001 jit   Dice
PyDataset-workers    50    1 jit   Dice
re-iterable-steps    64   63 jit   Dice
DataLoader         1000 1000 jit   Dice
arrays               50   50 jit   Tversky
tf.data-known        64   65 jit   Tversky
tf.data-unknown    1000 1001 jit   Tversky
tf.data-rebatched     7    1 jit   Tversky
PyDataset            50   49 jit   Tversky
PyDataset-workers    64   64 plain Tversky
re-iterable-steps  1000 1001 jit   Tversky
DataLoader            7 1001 jit   Tversky
arrays               64 1001 jit   Circle
tf.data-known      1000    1 plain Circle
tf.data-unknown       7    6 jit   Circle
tf.data-rebatched    50   50 jit   Circle
PyDataset            64   65 jit   Circle
PyDataset-workers  1000 1001 jit   Circle
re-iterable-steps     7    1 jit   Circle
DataLoader           50   49 jit   Circle
arrays             1000 1000 jit   a metric function with one number per batch
tf.data-known         7    8 jit   a metric function with one number per batch
tf.data-unknown      50 1001 jit   a metric function with one number per batch
tf.data-rebatched    64    1 jit   a metric function with one number per batch
PyDataset          1000  999 jit   a metric function with one number per batch
PyDataset-workers     7    7 plain a metric function with one number per batch
re-iterable-steps    50   51 jit   a metric function with one number per batch
DataLoader           64 1001 jit   a metric function with one number per batch
arrays                7 1001 jit   a loss function per example, weights [n]
tf.data-known        50    1 plain a loss function per example, weights [n]
tf.data-unknown      64   63 jit   a loss function per example, weights [n]
tf.data-rebatched  1000 1000 jit   a loss function per example, weights [n]
PyDataset             7    8 jit   a loss function per example, weights [n]
PyDataset-workers    50 1001 jit   a loss function per example, weights [n]
re-iterable-steps    64    1 jit   a loss function per example, weights [n]
DataLoader         1000  999 jit   a loss function per example, weights [n]
arrays               50   49 jit   a loss function that is a mean
tf.data-known        64   64 jit   a loss function that is a mean
tf.data-unknown    1000 1001 jit   a loss function that is a mean
tf.data-rebatched     7 1001 jit   a loss function that is a mean
PyDataset            50    1 plain a loss function that is a mean
PyDataset-workers    64   63 jit   a loss function that is a mean
re-iterable-steps  1000 1000 jit   a loss function that is a mean
DataLoader            7    8 jit   a loss function that is a mean
arrays               64   65 plain a loss function that is no mean
tf.data-known      1000 1001 jit   a loss function that is no mean
tf.data-unknown       7    1 jit   a loss function that is no mean
tf.data-rebatched    50   49 jit   a loss function that is no mean
PyDataset            64   64 jit   a loss function that is no mean
PyDataset-workers  1000 1001 jit   a loss function that is no mean
re-iterable-steps     7 1001 jit   a loss function that is no mean
DataLoader           50    1 jit   a loss function that is no mean
arrays             1000    1 jit   compute_loss that is no mean
tf.data-known         7    6 jit   compute_loss that is no mean
tf.data-unknown      50   50 jit   compute_loss that is no mean
tf.data-rebatched    64   65 plain compute_loss that is no mean
PyDataset          1000 1001 jit   compute_loss that is no mean
PyDataset-workers     7    1 jit   compute_loss that is no mean
re-iterable-steps    50   49 jit   compute_loss that is no mean
DataLoader           64   64 jit   compute_loss that is no mean
"""


def cases(torch: bool) -> list[Case]:
    """Returns the cases of the table that a backend runs."""
    lines = [line.split(maxsplit=4) for line in TABLE.strip().splitlines()[1:]]
    return [
        Case(form, int(batch_size), int(rows), situation, jit == "jit" and not torch)
        for form, batch_size, rows, jit, situation in lines
        if torch or form != "DataLoader"
    ]
