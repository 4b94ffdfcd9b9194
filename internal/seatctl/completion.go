package seatctl

import (
	"bytes"
	"fmt"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
)

type completionCommand struct {
	Shell string `arg:"" help:"The shell: bash, zsh or fish." enum:"bash,zsh,fish"`
	JSON  bool   `help:"Print one JSON document."`
}

// Help is kong's detailed help.
func (*completionCommand) Help() string {
	return `Prints what a shell must read so that it completes this program's commands and
flags, wherever the program lies now. It changes nothing.

  bash  source <(seatctl completion bash), in ~/.bashrc for every shell
  zsh   source <(seatctl completion zsh), in ~/.zshrc
  fish  seatctl completion fish | source, in ~/.config/fish/config.fish

Exit status: 0 printed; 2 it could not be run.

Example:
  seatctl completion bash`
}

// Run is the command.
func (c *completionCommand) Run(ctx *kong.Context, s *session) error {
	var code bytes.Buffer
	ctx.Stdout = &code
	if err := (&kongcompletion.Completion{Shell: c.Shell, Code: true}).Run(ctx); err != nil {
		return err
	}
	if c.JSON {
		return s.printJSON(struct {
			Shell string `json:"shell"`
			Code  string `json:"code"`
		}{c.Shell, code.String()})
	}
	_, err := fmt.Fprint(s.stdout, code.String())
	return err
}
