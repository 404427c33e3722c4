// Command app is the program in the images of the tests and of the tutorial. It is static and depends on the standard library
// only, and its subcommands do one thing each that a Pod may be asked to show.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strings"
	"syscall"
)

// exitError carries the exit code of a subcommand that ends with one on purpose.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// command is one subcommand. Its context ends with SIGTERM or SIGINT.
type command struct {
	usage string
	run   func(ctx context.Context, args []string) error
}

var commands map[string]command

func init() {
	commands = map[string]command{
		"serve":      {"serve [-addr :8080] [-healthy-after D] [-unhealthy-after D] [-delay D] [-drain D]: HTTP server, see serve.go", serve},
		"tcp":        {"tcp ADDRESS: accept TCP connections, send a greeting", tcp},
		"get":        {"get URL: print what a GET returns, exit 1 unless the status is 2xx", get},
		"dial":       {"dial ADDRESS: exit 0 if a TCP connection can be made", dial},
		"sleep":      {"sleep DURATION|forever: end early, with exit code 0, on SIGTERM", sleep},
		"stubborn":   {"stubborn: ignore SIGTERM, run until SIGKILL", stubborn},
		"trap":       {"trap DURATION CODE: on SIGTERM say so, wait, end with the code", trap},
		"exit":       {"exit CODE [AFTER]: end with the code, after a duration", exit},
		"crash":      {"crash SIGNAL [AFTER]: end by a signal", crash},
		"fail-until": {"fail-until FILE N: count runs in the file, exit 1 on the first N of them", failUntil},
		"hog":        {"hog BYTES [AFTER]: use that much memory (suffixes Ki, Mi, Gi), then sleep", hog},
		"fill":       {"fill FILE BYTES: write a file of that size, then sleep", fill},
		"spawn":      {"spawn N: start N sleeping children, then sleep", spawn},
		"log":        {"log [-n N] [-every D] [-stderr] TEXT: print lines", logLines},
		"echo":       {"echo TEXT...: print a line", echo},
		"env":        {"env [NAME]: print the environment or one variable", env},
		"args":       {"args ...: print each argument on a line", printArgs},
		"id":         {"id: print uid, gid and groups", id},
		"hostname":   {"hostname: print the host's name", hostname},
		"cat":        {"cat FILE...: print files; - is standard input", cat},
		"ls":         {"ls PATH...: print name, mode and owner of each entry", ls},
		"write":      {"write FILE TEXT: write a file", write},
		"append":     {"append FILE TEXT: add a line to a file", appendLine},
		"rm":         {"rm FILE...: remove files", remove},
		"exists":     {"exists FILE: exit 1 if there is no such file", exists},
		"wait-file":  {"wait-file FILE: wait until the file is there", waitFile},
		"mounts":     {"mounts [PATH]: print the mount table, or the line of one mount point", mounts},
		"seq":        {"seq CMD... -- CMD...: run subcommands one after another, stop at the first failure", seq},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	var code exitError
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usage()
	}
	c, ok := commands[args[0]]
	if !ok {
		return usage()
	}
	if err := c.run(ctx, args[1:]); err != nil {
		var code exitError
		if errors.As(err, &code) {
			return err
		}
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}

func usage() error {
	lines := make([]string, 0, len(commands))
	for _, c := range commands {
		lines = append(lines, "  "+c.usage)
	}
	sort.Strings(lines)
	fmt.Fprintln(os.Stderr, "usage: app COMMAND ...\n"+strings.Join(lines, "\n"))
	return exitError(2)
}

// seq runs subcommands that are parted by "--".
func seq(ctx context.Context, args []string) error {
	for len(args) > 0 {
		end := 0
		for end < len(args) && args[end] != "--" {
			end++
		}
		if err := run(ctx, args[:end]); err != nil {
			return err
		}
		args = args[min(end+1, len(args)):]
	}
	return nil
}

// want checks the number of arguments.
func want(args []string, atLeast, atMost int) error {
	if len(args) < atLeast || len(args) > atMost {
		return fmt.Errorf("%d arguments, want %d to %d", len(args), atLeast, atMost)
	}
	return nil
}
