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

// Runner is a *testing.M or a wrapper.
type Runner interface{ Run() int }

// variable is set in a process that runs in its own namespace.
const variable = "OUTRIGGER_TEST_OWN_NETWORK"

// lockName is the socket name that a test process listens on while it uses the network of the
// machine. The kernel releases the name when the process exits.
const lockName = "@outrigger-tests-without-own-network"

// Tests returns a Runner that runs the tests of m in their own network namespace. Run starts the
// test binary again in a new namespace and returns its exit code. Without namespaces, Run waits
// until no other test process on the machine uses the network, and runs m directly.
func Tests(m Runner) Runner { return tests{m} }

// FreePort returns a free TCP port on an IP address, for a server that listens later or repeatedly.
// It is outside the range that the system uses for port 0, from which another test might get it in
// the meantime. It is also different from all ports that FreePort has returned to running
// processes. No child process has a listener on it open.
func FreePort(address string) (string, error) {
	syscall.ForkLock.RLock() // a child that has not executed its program yet would have it
	defer syscall.ForkLock.RUnlock()
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

// Listen listens on a TCP address on which this process had closed a listener. A child process that
// has not executed its program yet still has that listener open, so Listen retries while the
// address is in use, for up to two minutes.
func Listen(address string) (net.Listener, error) {
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		l, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
	}
}

// Own reports whether this process has its own network namespace.
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

// again runs this program in a new namespace and returns its exit code, or an error if it cannot be
// started.
func again() (int, error) {
	attributes, err := inNamespace()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attributes
	unlock := holdThread() // the end of the thread would be taken for that of this process
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
				_ = cmd.Process.Signal(s) // it may have exited
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

// alone waits until no other test process uses the network of the machine.
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
