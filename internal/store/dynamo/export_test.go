package dynamo

// For tests of what the table holds.
var (
	Encode = encode
	Decode = decode
	Tries  = int(tries)
)
