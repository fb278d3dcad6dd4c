// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/e2e/child"
)

const (
	monitoring = controlHost + ":15014"
	watchEvery = 2 * time.Second // the default of --watch
	watchTime  = 10 * time.Second
)

// tools measures what commands that watch cost a control plane with many proxies, and how long commands
// about the past take.
func (b *bench) tools(ctx context.Context) {
	sub, c, p := b.connected(ctx, false)
	defer p.stop()
	sub.watchers(ctx, c)
	sub.commands(ctx, p)
}

// watchers measures the CPU time of the control plane and the bytes that it sends to commands that watch
// at the same time.
func (b *bench) watchers(ctx context.Context, c *control) {
	wire := newMeter(monitoring)
	defer wire.stop()
	sleep(ctx, 10*time.Second) // the first sync is over
	idle, _ := c.watched(ctx, wire)
	for _, n := range []int{1, 10, 100} {
		b.say("tools: %d that watch", n)
		before := c.holds(ctx)
		end := b.watch(ctx, wire, n)
		sleep(ctx, 2*watchEvery) // each has an answer
		used, bytes := c.watched(ctx, wire)
		changing := 0.0
		if n == 1 {
			changing = b.changed(ctx, c, wire)
		}
		check(end())
		after := c.holds(ctx)
		title := fmt.Sprintf("%d of status --watch, %d proxies: ", n, b.proxies)
		b.add(
			figure{Name: title + "CPU of a second", Unit: milliseconds, Ours: max(0, used-idle)},
			figure{Name: title + "sent in a second", Unit: kilobytes, Ours: bytes})
		if n == 1 {
			b.add(figure{Name: "… while all proxies change each second", Unit: kilobytes, Ours: changing})
		}
		b.add(
			figure{Name: title + "more goroutines", Unit: count, Ours: max(0, after.goroutines-before.goroutines)},
			figure{Name: title + "more anonymous memory", Unit: megabytes, Ours: max(0, after.anonymous-before.anonymous)})
	}
}

// watched returns the CPU time of the control plane, and the bytes that were sent, in a second.
func (c *control) watched(ctx context.Context, wire *meter) (cpu, bytes float64) {
	cpu, sent := c.usage().cpu, wire.bytes.Load()
	sleep(ctx, watchTime)
	return (c.usage().cpu - cpu) / watchTime.Seconds(), float64(wire.bytes.Load()-sent) / watchTime.Seconds()
}

// changed returns the bytes that are sent in a second while a route changes every second.
func (b *bench) changed(ctx context.Context, c *control, wire *meter) (bytes float64) {
	ctx, cancel := context.WithCancel(ctx)
	var writing errgroup.Group
	writing.Go(func() error {
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
			if err := replaceFile(routeFile(b.path("config"), 0), route(0, fmt.Sprintf("10.81.1.%d", i))); err != nil {
				return err
			}
		}
	})
	defer func() {
		cancel()
		check(writing.Wait())
	}()
	_, bytes = c.watched(ctx, wire)
	return bytes
}

// holds returns what the control plane holds when nobody watches.
func (c *control) holds(ctx context.Context) (h holding) {
	sleep(ctx, 2*time.Second)
	h.anonymous = c.usage().anonymous
	var text strings.Builder
	must(get(ctx, freshClient(), "http://"+monitoring+"/metrics", &text))
	_, line, _ := strings.Cut(text.String(), "\ngo_goroutines ")
	must(fmt.Sscan(line, &h.goroutines))
	return h
}

// watch starts outrigger status --watch, and others that ask as it does, so that there are n. end ends all
// of them.
func (b *bench) watch(ctx context.Context, wire *meter, n int) (end func() error) {
	p := b.start.run(child.Spec{
		Path: filepath.Join(b.bin, "outrigger"), Dir: b.dir, Log: b.path("watch.log"), Args: []string{"status", "--watch", "--control", wire.address()},
	})
	ctx, cancel := context.WithCancel(ctx)
	var others errgroup.Group
	for i := range n - 1 {
		others.Go(func() error { return ask(ctx, wire.address(), time.Duration(i)*watchEvery/time.Duration(n)) })
	}
	return func() error {
		p.stop()
		cancel()
		return others.Wait()
	}
}

// ask asks like outrigger status --watch until ctx ends. It does not decode the answers: many commands
// would need more of the machine than the control plane.
func ask(ctx context.Context, address string, after time.Duration) error {
	next, tag := time.NewTimer(after), ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			next.Reset(watchEvery)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/debug/proxies", http.NoBody)
		if err != nil {
			return err
		}
		req.Header.Set("Accept-Encoding", "gzip")
		if tag != "" {
			req.Header.Set("If-None-Match", tag)
			req.Header.Set("Cache-Control", "max-age=1")
		}
		resp, err := freshClient().Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			err = errors.Join(err, resp.Body.Close())
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case resp.StatusCode == http.StatusOK:
			tag = resp.Header.Get("ETag")
		case resp.StatusCode != http.StatusNotModified:
			return fmt.Errorf("one that watches receives %s", resp.Status)
		}
	}
}

// meter forwards connections, and counts the bytes of the answers.
type meter struct {
	listener net.Listener
	bytes    atomic.Int64
}

func newMeter(to string) *meter {
	m := &meter{listener: must(net.Listen("tcp", "127.0.0.1:0"))}
	go func() {
		for {
			near, err := m.listener.Accept()
			if err != nil {
				return // the listener is closed
			}
			go m.forward(near, to)
		}
	}()
	return m
}

func (m *meter) address() string { return m.listener.Addr().String() }

func (m *meter) stop() { _ = m.listener.Close() } // its connections end with their clients

func (m *meter) forward(near net.Conn, to string) {
	defer func() { _ = near.Close() }() // both have been read
	far, err := net.Dial("tcp", to)
	if err != nil {
		return // the client reports it
	}
	defer func() { _ = far.Close() }() // as above
	go func() {
		_, _ = io.Copy(far, near) // ends with the connection
	}()
	_, _ = io.Copy(near, io.TeeReader(far, m))
}

// Write counts bytes.
func (m *meter) Write(p []byte) (int, error) {
	m.bytes.Add(int64(len(p)))
	return len(p), nil
}

// commands measures commands about the past, with objects that have changed since, once all proxies have
// these.
func (b *bench) commands(ctx context.Context, p *proxies) {
	b.say("tools: commands about the past")
	began := time.Now()
	for i := range 30 {
		marker := fmt.Sprintf("10.81.0.%d", 100+i)
		if i == 29 {
			p.wanted.Store(&wanted{typeURL: lastType(true), marker: []byte(marker)})
		}
		writeFile(routeFile(b.path("config"), i%3*10), route(i%3*10, marker))
		sleep(ctx, 300*time.Millisecond)
	}
	p.by(100, p.seen)
	sleep(ctx, time.Second) // acknowledgements
	at := began.Format(time.RFC3339)
	request := []string{"explain", "request", "--from", "none", "--to", "bench-0.default", "--port", "80"}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"history", []string{"history"}},
		{"diff --from", []string{"diff", "--from", at}},
		{"explain --at", []string{"explain", "vs/vs-0", "--at", at}},
		{"explain request --at", append(request, "--at", at)},
		{"explain request", request},
		{"rollback", []string{"rollback", "vs/vs-0"}},
	} {
		var answered, ended []float64
		for range b.rounds {
			answer, end := b.tool(ctx, c.args...)
			answered, ended = append(answered, answer), append(ended, end)
		}
		title := fmt.Sprintf("outrigger %s, %d proxies: ", c.name, b.proxies)
		b.add(
			figure{Name: title + "answer", Unit: seconds, Ours: median(answered, itself), Target: 1},
			figure{Name: title + "end", Unit: seconds, Ours: median(ended, itself)})
	}
}

// tool runs the command line tool, and returns how long it takes until it begins to answer, and until it
// ends: after the answer about a request that is denied, it tries up to 30 earlier states.
func (b *bench) tool(ctx context.Context, args ...string) (answered, ended float64) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(b.bin, "outrigger"), args...)
	cmd.Env = append(os.Environ(), "OUTRIGGER_CONTROL="+monitoring, "OUTRIGGER_STORE=fs://"+b.path("config"))
	out := must(cmd.StdoutPipe())
	began := time.Now()
	check(cmd.Start())
	n, err := out.Read(make([]byte, 1))
	answered = time.Since(began).Seconds()
	_, _ = io.Copy(io.Discard, out) // what it says is not measured
	failed := cmd.Wait()
	if exit := cmd.ProcessState.ExitCode(); n == 0 || exit != 0 && exit != 1 { // 1 is for a difference, or a request that is denied
		fail("outrigger %s: %w", strings.Join(args, " "), errors.Join(err, failed))
	}
	return answered, time.Since(began).Seconds()
}
