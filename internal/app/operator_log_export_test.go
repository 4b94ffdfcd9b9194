package app

import "io"

// DescribeUser is how an account is named in the operator's log.
func DescribeUser(list io.Reader, uid int, sudo string) string { return describeUser(list, uid, sudo) }
