// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// The load of the hot restarts: clients that keep their connection and clients
// that open one for each request, together a thousand requests a second.
const (
	keepingClients = 40
	openingClients = 10
	hotRate        = 1050 // what they aim at, a little more than is wanted
	hotDrain       = 2 * time.Second
)

// hotRestart has new Envoys take over, one after the other, under load. The
// listener is a static one; the control plane and its mesh are real.
func (b *bench) hotRestart(ctx context.Context) {
	c := b.startControl(ctx, "hot-control")
	override := b.path("hot-override.yaml")
	writeFile(override, direct(hotHost, 8080))
	agent := b.startAgent("hot-agent", agentSpec{
		address: hotHost, control: c, drain: hotDrain, workers: 2,
		args: []string{"--hot-restart"}, env: []string{"ISTIO_BOOTSTRAP_OVERRIDE=" + override},
	})
	agent.wait(ctx, statusURL(hotHost, "/healthz/ready"), "")
	l := startLoad(ctx)
	defer l.end()
	took := b.hotRestarts(ctx, agent)
	l.end()
	for _, failure := range l.failures[:min(len(l.failures), 5)] {
		b.say("hot restart: a request failed: %s", failure)
	}
	b.say("hot restart: %d requests, %.0f a second", l.requests, float64(l.requests)/l.lasted.Seconds())
	what := fmt.Sprintf("hot restart, %d in a row under 1,000 requests/s: ", b.restarts)
	b.add(
		figure{Name: what + "failed requests", Unit: count, Ours: float64(len(l.failures))},
		figure{Name: what + "slowest request", Unit: milliseconds, Ours: l.slowest.Seconds()},
		figure{Name: what + "signal until the new Envoy serves", Unit: seconds, Ours: median(took, itself)})
}

// hotRestarts asks for one after the other and returns how long each took.
func (b *bench) hotRestarts(ctx context.Context, agent *process) (took []float64) {
	sleep(ctx, time.Second) // of load only
	for i := range b.restarts {
		began := time.Now()
		check(agent.Signal(syscall.SIGHUP))
		agent.wait(ctx, statusURL(hotHost, "/metrics"), fmt.Sprintf("outrigger_agent_hot_restarts_total{result=\"ok\"} %d\n", i+1))
		took = append(took, time.Since(began).Seconds())
		b.say("hot restart %d of %d: the new Envoy serves after %.3f s", i+1, b.restarts, took[i])
		sleep(ctx, hotDrain+500*time.Millisecond)
	}
	return took
}

// hotLoad is what the clients saw. It may be read once end has returned.
type hotLoad struct {
	stop    context.CancelFunc
	clients sync.WaitGroup
	began   time.Time
	lasted  time.Duration

	mu       sync.Mutex // guards what follows
	requests int
	failures []string
	slowest  time.Duration
}

// startLoad has the clients send requests at an even pace.
func startLoad(ctx context.Context) *hotLoad {
	ctx, stop := context.WithCancel(ctx)
	l := &hotLoad{stop: stop, began: time.Now()}
	const clients = keepingClients + openingClients
	every := time.Second * clients / hotRate
	for i := range clients {
		l.clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: i < openingClients}, Timeout: 10 * time.Second}
			defer client.CloseIdleConnections()
			time.Sleep(every * time.Duration(i) / clients)
			ticker := time.NewTicker(every)
			defer ticker.Stop()
			for {
				began := time.Now()
				err := l.ask(client)
				l.note(err, time.Since(began))
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
			}
		})
	}
	return l
}

// ask sends a request that Go's client never repeats by itself.
func (l *hotLoad) ask(client *http.Client) error {
	resp, err := client.Post("http://"+hotHost+":8080/", "", nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return err
}

func (l *hotLoad) note(err error, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	l.slowest = max(l.slowest, took)
	if err != nil {
		l.failures = append(l.failures, err.Error())
	}
}

func (l *hotLoad) end() {
	l.stop()
	l.clients.Wait()
	l.lasted = time.Since(l.began)
}
