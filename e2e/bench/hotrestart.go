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

// The load during hot restarts: clients that keep their connections and clients that open one for
// each request, with a total of a thousand requests per second.
const (
	keepingClients = 40
	openingClients = 10
	hotRate        = 1050 // target rate, slightly above the required one
	hotDrain       = 2 * time.Second
)

// hotRestart measures consecutive hot restarts under load. The listener is static; the control
// plane and its mesh are real.
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

// hotRestarts requests hot restarts one after the other and returns their durations.
func (b *bench) hotRestarts(ctx context.Context, agent *process) (took []float64) {
	sleep(ctx, time.Second) // run the load alone for a while
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

// hotLoad is the result of the load. It may be read once end has returned.
type hotLoad struct {
	stop    context.CancelFunc
	clients sync.WaitGroup
	began   time.Time
	lasted  time.Duration

	mu       sync.Mutex // guards the fields below
	requests int
	failures []string
	slowest  time.Duration
}

// startLoad starts clients that send requests at a constant rate.
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

// ask sends a request of a type that Go's client never retries by itself.
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
