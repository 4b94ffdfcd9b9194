package app

import "os/user"

// DescribeUser is how an account is named in the operator's log.
func DescribeUser(u *user.User, sudo string) string { return describeUser(u, sudo) }
