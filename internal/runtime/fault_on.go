//go:build faults

package runtime

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// faults counts the points that the process passes. KLBR_FAULT_TRACE names a
// file that gets a line for each; KLBR_FAULT=n kills the process with SIGKILL
// at the n-th.
var faults struct {
	mu    sync.Mutex
	n     int
	trace *os.File
}

func faultPoint(name string) {
	f := &faults
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	if path := os.Getenv("KLBR_FAULT_TRACE"); path != "" {
		if f.trace == nil {
			t, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				panic(err)
			}
			f.trace = t
		}
		fmt.Fprintf(f.trace, "%d %s\n", f.n, name)
	}
	if at, err := strconv.Atoi(os.Getenv("KLBR_FAULT")); err == nil && at == f.n {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
