package shard

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// process says where this process is to be found by another one on the same host. Host is empty where it can't be: then others wait for the TTL.
func process() *podplanev1.LeaseRecord {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return &podplanev1.LeaseRecord{}
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return &podplanev1.LeaseRecord{}
	}
	// A procfs of another pid namespace shows other pids than ours.
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return &podplanev1.LeaseRecord{}
	}
	started, running := startOf(os.Getpid())
	if !running {
		return &podplanev1.LeaseRecord{}
	}
	return &podplanev1.LeaseRecord{Host: strings.TrimSpace(string(boot)) + " " + namespace, Pid: int64(os.Getpid()), PidStarted: started}
}

// gone says whether the process of a record is known not to be there any more. here is our own.
func gone(r, here *podplanev1.LeaseRecord) bool {
	if here.GetHost() == "" || r.GetHost() != here.GetHost() {
		return false
	}
	started, running := startOf(int(r.GetPid()))
	return !running || started != r.GetPidStarted()
}

// startOf gives when a process was started; running is false only when there is certainly none.
func startOf(pid int) (ticks uint64, running bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false
	}
	// The name, in parentheses, may hold anything; the state is the first field after it, the start the twentieth.
	_, rest, ok := bytes.Cut(data[bytes.LastIndexByte(data, '(')+1:], []byte(") "))
	fields := bytes.Fields(rest)
	if err != nil || !ok || len(fields) < 20 {
		return 0, true
	}
	if s := fields[0][0]; s == 'Z' || s == 'X' {
		return 0, false
	}
	ticks, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return ticks, err == nil
}
