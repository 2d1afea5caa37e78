package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"carob/internal/base/instance"
	"carob/internal/cli/terminal"
)

// Exit codes of all commands except kubectl, which has its own.
const (
	exitFailed = 1 // failure, or a negative result (`carob status`)
	exitUsage  = 2 // the command line is invalid
)

// usageError is an invalid command, argument, or flag.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitCode returns the exit code for an error.
func exitCode(err error) int {
	var exit Exit
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &usage), errors.Is(err, instance.ErrFlag):
		return exitUsage
	}
	return exitFailed
}

// plainErrors replaces Go's error texts with plain ones.
var plainErrors = strings.NewReplacer("context deadline exceeded", "no answer in time", "context canceled",
	"it was stopped")

// message formats an error for users. What a request was about does not matter if it did not reach the server.
func message(err error) string {
	if u, ok := errors.AsType[unreachable](err); ok {
		return u.Error() + "; check that the cluster runs (`carob ls`), and the kubeconfig"
	}
	return terminal.PrintableLines(plainErrors.Replace(err.Error())) // a registry or an API server may have written it
}

// finish makes all commands of a tree handle invalid use in the same way.
func finish(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = group
	}
	for _, c := range cmd.Commands() {
		finish(c)
	}
}

// group is a command that only has subcommands.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknownCommand(cmd, args[0])
}

func unknownCommand(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("%s has no command %q", cmd.CommandPath(), name)
	if cmd.SuggestionsMinimumDistance == 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if like := cmd.SuggestionsFor(name); len(like) > 0 {
		text += "; did you mean " + strings.Join(like, " or ") + "?"
	}
	return usagef("%s\nSee '%s --help'", text, cmd.CommandPath())
}

// noArgs is for commands that take flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef("%s takes no arguments, but %q was given\nSee '%s --help'", cmd.CommandPath(), args[0],
		cmd.CommandPath())
}

// exactArgs is for commands that take exactly the arguments of their Use line.
func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return argumentError(cmd)
	}
}

// someArgs is for commands that take one or more arguments.
func someArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return nil
	}
	return argumentError(cmd)
}

func argumentError(cmd *cobra.Command) error {
	return usagef("usage: %s\nSee '%s --help'", strings.TrimSuffix(cmd.UseLine(), " [flags]"), cmd.CommandPath())
}

// flagError names the invalid flag and the accepted values.
func flagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := wrong.GetFlag()
		text = fmt.Sprintf("--%s: %q is not %s", f.Name, wrong.GetValue(), kindOf(f.Value))
	}
	return usagef("%s\nSee '%s --help'", text, cmd.CommandPath())
}

// kindOf describes the values that a flag accepts.
func kindOf(v pflag.Value) string {
	if c, ok := v.(*choice); ok {
		return c.either()
	}
	switch v.Type() {
	case "int", "int64":
		return "an integer"
	case "uint16":
		return "a port number from 0 to 65535"
	case "uint64":
		return "a non-negative integer"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration, such as 30s or 5m"
	case "intSlice":
		return "a comma-separated list of integers"
	}
	return "a " + v.Type()
}

// choice is a flag that accepts a few words, or nothing by default.
type choice struct {
	to    *string
	words []string
}

func (c *choice) either() string {
	last := len(c.words) - 1
	return strings.Join(c.words[:last], ", ") + " or " + c.words[last]
}

// String, Set and Type implement pflag.Value.
func (c *choice) String() string { return *c.to }

func (c *choice) Set(s string) error {
	if s != "" && !slices.Contains(c.words, s) {
		return errors.New("it is " + c.either())
	}
	*c.to = s
	return nil
}

func (c *choice) Type() string { return strings.Join(c.words, "|") }

// addChoice adds a flag that accepts one of a few words, and completes them.
func addChoice(cmd *cobra.Command, to *string, name, short, usage string, words ...string) {
	cmd.Flags().VarP(&choice{to, words}, name, short, usage)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// helpCommand is `carob help COMMAND`; cobra's own exits with 0 for an unknown command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show the help of a command",
		Example: "  carob help up\n  carob help image pull",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			of, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, c := range of.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			if err == nil && of.DisableFlagParsing && len(rest) > 0 { // kubectl has its own
				return of.RunE(of, append(rest, "--help"))
			}
			if err != nil || len(rest) > 0 {
				return unknownCommand(cmd.Root(), strings.Join(args, " "))
			}
			of.InitDefaultHelpFlag()
			of.InitDefaultVersionFlag()
			return of.Help()
		},
	}
}
