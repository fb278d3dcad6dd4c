// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ownnet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// Runner is a *testing.M, or what stands before one.
type Runner interface{ Run() int }

// variable is set in a process that runs in a namespace of its own.
const variable = "OUTRIGGER_TEST_OWN_NETWORK"

// lockName is what a test process listens on while it has the network of the
// machine. The kernel takes the name back when the process ends.
const lockName = "@outrigger-tests-without-own-network"

// Tests returns a Runner that runs the tests of m in a network namespace of their
// own: Run starts the test binary again, in a new namespace, and returns its exit
// code. Without namespaces Run waits until no other test process of the machine has
// the network, and runs m itself.
func Tests(m Runner) Runner { return tests{m} }

// FreePort returns a TCP port of an IP address for a server that listens later, or again
// and again. It is not one of those that the system chooses for port 0: a listener of
// another test may get such a one in the meantime. Nor is it one that FreePort has
// returned to a process that still runs.
func FreePort(address string) (string, error) {
	var err error
	for range 100 {
		port := strconv.Itoa(20000 + rand.N(10000))
		if err = reserve("@outrigger-tests-port-" + port); err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(address, port)); err == nil {
			return port, l.Close()
		}
	}
	return "", err
}

// Listen listens on a TCP address on which an earlier listener of this process was
// closed. A child process that has not yet run its program still holds that one, so
// that Listen waits while the address is in use, for two minutes at most.
func Listen(address string) (net.Listener, error) {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		l, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
	}
}

// Own reports whether this process has a network namespace of its own.
func Own() bool { return os.Getenv(variable) != "" }

type tests struct{ m Runner }

func (t tests) Run() int {
	if Own() {
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, "network namespace of the tests:", err)
			return 1
		}
		return t.m.Run()
	}
	code, err := again()
	if err == nil {
		return code
	}
	fmt.Fprintf(os.Stderr, "no network namespace for these tests (%v): they run when no others use the network of this machine\n", err)
	lock := alone()
	code = t.m.Run()
	if err := lock.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// again runs this program in a new namespace and returns its exit code. It returns
// an error if it cannot start.
func again() (int, error) {
	attributes, err := inNamespace()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attributes
	unlock := holdThread() // its end would be taken for that of this process
	defer unlock()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		signal.Stop(signals)
		return 0, err
	}
	ended := make(chan struct{})
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // it may have ended
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	signal.Stop(signals)
	close(ended)
	<-handed
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code, nil
	}
	fmt.Fprintln(os.Stderr, "tests:", err)
	return 1, nil
}

// alone waits until no other test process has the network of the machine.
func alone() net.Listener {
	for told := false; ; time.Sleep(100 * time.Millisecond) {
		l, err := net.Listen("unix", lockName)
		if err == nil {
			return l
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			fmt.Fprintln(os.Stderr, "lock of the network:", err)
			return noLock{}
		}
		if !told {
			fmt.Fprintln(os.Stderr, "waiting for another test process")
			told = true
		}
	}
}

type noLock struct{ net.Listener }

func (noLock) Close() error { return nil }
