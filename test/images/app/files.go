package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func echo(_ context.Context, args []string) error {
	_, err := fmt.Println(strings.Join(args, " "))
	return err
}

func printArgs(_ context.Context, args []string) error {
	for _, arg := range args {
		fmt.Println(arg)
	}
	return nil
}

func env(_ context.Context, args []string) error {
	if len(args) == 0 {
		return printArgs(context.Background(), os.Environ())
	}
	value, ok := os.LookupEnv(args[0])
	if !ok {
		return fmt.Errorf("%s is not set", args[0])
	}
	fmt.Println(value)
	return nil
}

func id(_ context.Context, _ []string) error {
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	fmt.Printf("uid=%d gid=%d groups=%s\n", os.Getuid(), os.Getgid(), strings.Trim(strings.ReplaceAll(fmt.Sprint(groups), " ", ","), "[]"))
	return nil
}

func hostname(_ context.Context, _ []string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	fmt.Println(name)
	return nil
}

func cat(_ context.Context, args []string) error {
	for _, name := range args {
		if name == "-" {
			if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
				return err
			}
			continue
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(content); err != nil {
			return err
		}
	}
	return nil
}

func ls(_ context.Context, args []string) error {
	for _, path := range args {
		names := []string{path}
		if info, err := os.Stat(path); err != nil {
			return err
		} else if info.IsDir() {
			entries, err := os.ReadDir(path)
			if err != nil {
				return err
			}
			for _, entry := range entries {
				names = append(names, filepath.Join(path, entry.Name()))
			}
		}
		for _, name := range names {
			if err := describe(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func describe(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: no owner in %T", name, info.Sys())
	}
	fmt.Printf("%s %s %d:%d %d\n", name, info.Mode(), owner.Uid, owner.Gid, info.Size())
	return nil
}

func write(_ context.Context, args []string) error {
	if err := want(args, 2, 2); err != nil {
		return err
	}
	return os.WriteFile(args[0], []byte(args[1]+"\n"), 0o644)
}

func appendLine(_ context.Context, args []string) error {
	if err := want(args, 2, 2); err != nil {
		return err
	}
	file, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, args[1])
	return errors.Join(err, file.Close())
}

func remove(_ context.Context, args []string) error {
	for _, name := range args {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

func exists(_ context.Context, args []string) error {
	if err := want(args, 1, 1); err != nil {
		return err
	}
	_, err := os.Stat(args[0])
	return err
}

func waitFile(ctx context.Context, args []string) error {
	if err := want(args, 1, 1); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(args[0]); err == nil {
			return nil
		}
		pause(ctx, 20*time.Millisecond)
	}
	return exitError(143)
}

func mounts(_ context.Context, args []string) error {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	found := len(args) == 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(args) == 0 || fields[4] == args[0] {
			found = true
			fmt.Println(lines.Text())
		}
	}
	if !found {
		return fmt.Errorf("nothing is mounted at %s", args[0])
	}
	return nil
}
