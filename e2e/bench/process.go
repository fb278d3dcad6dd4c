// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/e2e/child"
	"github.com/outrigger-mesh/outrigger/e2e/netlab"
)

// starter starts the programs of a part.
type starter struct {
	at      *netlab.Machine // where they run; nil means this machine
	running []*process      // programs started since stop
}

// process is a running program.
type process struct {
	*child.Process
	client *http.Client // connects from where the program runs
}

// run starts a program, which is stopped at the end of the part.
func (s *starter) run(spec child.Spec) *process {
	transport := &http.Transport{}
	if s.at != nil {
		spec.Enter, transport.DialContext = s.at.Enter, s.at.Dial
	}
	p := &process{must(child.Start(spec)), &http.Client{Transport: transport}}
	s.running = append(s.running, p)
	return p
}

// stop stops all programs in reverse order.
func (s *starter) stop() {
	for _, p := range slices.Backward(s.running) {
		p.stop()
	}
	s.running = nil
}

func (p *process) stop() {
	p.client.CloseIdleConnections()
	p.Stop()
}

// helper runs this program as one of its helpers, in the directory of the bench.
func (b *bench) helper(name string, args ...string) *process {
	return b.start.run(child.Spec{Path: must(os.Executable()), Dir: b.dir, Log: b.path(name + ".log"), Args: append([]string{name}, args...)})
}

// until calls done at the given interval until it returns true, for at most half a minute, and
// returns the seconds since the program's start.
func (p *process) until(ctx context.Context, what string, every time.Duration, done func(context.Context) bool) float64 {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if done(ctx) {
			return time.Since(p.Began).Seconds()
		}
		select {
		case <-tick.C:
		case <-p.Ended:
			fail("%s ended before it was %s: %s", p.Path, what, p.LastWords())
		case <-ctx.Done():
			fail("%s is not %s: %w: %s", p.Path, what, ctx.Err(), p.LastWords())
		}
	}
}

// wait requests a URL every millisecond until the response has status 200 and contains the text. It
// returns the seconds since the program's start.
func (p *process) wait(ctx context.Context, url, want string) float64 {
	defer p.client.CloseIdleConnections()
	return p.waitAnswer(ctx, p.client, url, want)
}

// waitAnswer is like wait, with a client.
func (p *process) waitAnswer(ctx context.Context, client *http.Client, url, want string) float64 {
	return p.until(ctx, "answering "+url, time.Millisecond, func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		var body bytes.Buffer
		_, err := get(ctx, client, url, &body)
		return err == nil && bytes.Contains(body.Bytes(), []byte(want))
	})
}

// listens waits until the program listens.
func (p *process) listens(ctx context.Context, network, address string) {
	p.until(ctx, "listening on "+filepath.Base(address), 5*time.Millisecond, func(context.Context) bool {
		conn, err := net.Dial(network, address)
		return err == nil && conn.Close() == nil
	})
}

// child waits for a child process with the given program name, and returns its id and the seconds
// until it was found.
func (p *process) child(ctx context.Context, program string) (pid int, took float64) {
	took = p.until(ctx, "running "+program, 200*time.Microsecond, func(context.Context) (found bool) {
		pid, found = p.Child(program)
		return found
	})
	return pid, took
}

// usage is the resource usage of a process: CPU time in seconds, and memory in bytes.
type usage struct{ cpu, resident, anonymous, peak float64 }

func (p *process) usage() usage { return inFigures(must(p.Usage())) }

func inFigures(u child.Usage) usage {
	return usage{u.CPU.Seconds(), float64(u.RSS), float64(u.Anonymous), float64(u.Peak)}
}

// get reads the response of a URL and returns its size in bytes.
func get(ctx context.Context, client *http.Client, url string, to io.Writer) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(to, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return n, err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
		check(ctx.Err())
	case <-time.After(d):
	}
}
