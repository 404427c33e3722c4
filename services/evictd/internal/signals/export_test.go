package signals

// ThreadsOf is for the fuzz test.
var ThreadsOf = threadsOf
