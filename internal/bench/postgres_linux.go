package bench

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// serverProcess says how PostgreSQL's programs run: they die with this process,
// and since they refuse to be root, root starts them as somebody else, whom the
// folder must belong to.
func serverProcess() (*syscall.SysProcAttr, *account, error) {
	// SIGQUIT is postgres's own word for "end at once, children first".
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() != 0 {
		return attr, nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, nil, fmt.Errorf("user %s: %w", name, err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return attr, &account{uid: int(uid), gid: int(gid)}, nil
	}
	return nil, nil, errors.New("postgres refuses to run as root, and there is no user postgres or nobody")
}
