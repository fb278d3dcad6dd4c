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
	at      *netlab.Machine // where they run, nil for this machine
	running []*process      // what it has started since stop
}

// process is a running program.
type process struct {
	*child.Process
	client *http.Client // connects to where it runs
}

// run starts a program, which ends with the part.
func (s *starter) run(spec child.Spec) *process {
	transport := &http.Transport{}
	if s.at != nil {
		spec.Enter, transport.DialContext = s.at.Enter, s.at.Dial
	}
	p := &process{must(child.Start(spec)), &http.Client{Transport: transport}}
	s.running = append(s.running, p)
	return p
}

// stop ends all programs, the last one first.
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

// until calls done every so often until it reports true, for half a minute at
// most, and returns the seconds since the program's start.
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

// wait asks a URL every millisecond until it answers 200 with the wanted text.
func (p *process) wait(ctx context.Context, url, want string) float64 {
	defer p.client.CloseIdleConnections()
	return p.waitAnswer(ctx, p.client, url, want)
}

// waitAnswer is wait with a client.
func (p *process) waitAnswer(ctx context.Context, client *http.Client, url, want string) float64 {
	return p.until(ctx, "answering "+url, time.Millisecond, func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		var body bytes.Buffer
		_, err := get(ctx, client, url, &body)
		return err == nil && bytes.Contains(body.Bytes(), []byte(want))
	})
}

// listens waits until a program listens.
func (p *process) listens(ctx context.Context, network, address string) {
	p.until(ctx, "listening on "+filepath.Base(address), 5*time.Millisecond, func(context.Context) bool {
		conn, err := net.Dial(network, address)
		return err == nil && conn.Close() == nil
	})
}

// child waits for the process that another one started, by the name of its
// program, and returns its id and the seconds until it was there.
func (p *process) child(ctx context.Context, program string) (pid int, took float64) {
	took = p.until(ctx, "running "+program, 200*time.Microsecond, func(context.Context) (found bool) {
		pid, found = p.Child(program)
		return found
	})
	return pid, took
}

// usage is what a process has used, in seconds of CPU time, and holds, in bytes.
type usage struct{ cpu, resident, anonymous, peak float64 }

func (p *process) usage() usage { return inFigures(must(p.Usage())) }

func inFigures(u child.Usage) usage {
	return usage{u.CPU.Seconds(), float64(u.RSS), float64(u.Anonymous), float64(u.Peak)}
}

// get reads a URL to its end and returns how many bytes it has.
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
