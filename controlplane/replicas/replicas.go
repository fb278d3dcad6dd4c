// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package replicas

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	mathrand "math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Path is the HTTP path of the load of a replica.
const Path = "/replicas/load"

// Limits of the rebalancing.
const (
	// tolerance is the fraction above the mean that counts as balanced.
	tolerance = 0.05
	// share is the maximum fraction of its proxies that a replica disconnects in a round.
	share = 0.05
	// atLeast is the minimum number of proxies above the mean.
	atLeast = 2
	// calm is the relative change of the total number of proxies between two rounds above which
	// nothing is rebalanced.
	calm = 0.1
	// answerTime is the timeout of a query; maxAnswer is the maximum size of a response in bytes.
	answerTime = 2 * time.Second
	maxAnswer  = 4 << 10
	maxPeers   = 100
)

// Config configures a [Balancer].
type Config struct {
	// Peers returns the addresses, host:port, of the replicas, which may include this one.
	Peers func(context.Context) ([]string, error)
	// Load returns the number of proxies that this replica serves. Shed makes one of them
	// reconnect; it returns false if there is none.
	Load func() int
	Shed func() bool
	// Ready reports whether this replica accepts proxies.
	Ready func() bool
	// Every is the interval of rounds; zero means 10 s.
	Every  time.Duration
	Logger *slog.Logger
	// Registerer registers the metrics; nil disables them.
	Registerer prometheus.Registerer
}

// Balancer balances the proxies of one replica against the others.
type Balancer struct {
	cfg    Config
	id     string
	client *http.Client
	moved  prometheus.Counter
	known  prometheus.Gauge
	mean   prometheus.Gauge
	last   round
}

// Load is the state that a replica reports.
type Load struct {
	// ID differs at each start.
	ID string `json:"id"`
	// Proxies is the number of proxies that the replica serves.
	Proxies int `json:"proxies"`
	// Ready is false while the replica accepts no proxies.
	Ready bool `json:"ready"`
}

// round contains the totals of one round.
type round struct{ replicas, proxies int }

// New returns a Balancer. It returns an error for an invalid configuration. The balancer is idle
// until Run is called.
func New(cfg Config) (*Balancer, error) {
	if cfg.Peers == nil || cfg.Load == nil || cfg.Shed == nil || cfg.Ready == nil {
		return nil, errors.New("replicas need their peers, their load and a way to shed it")
	}
	if cfg.Every <= 0 {
		cfg.Every = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Balancer{
		cfg: cfg, id: rand.Text(),
		client: &http.Client{
			Timeout:       answerTime,
			Transport:     &http.Transport{DisableKeepAlives: true}, // no HTTP proxy; an address may change owner
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		moved: prometheus.NewCounter(prometheus.CounterOpts{Name: "outrigger_control_replica_moved_total", Help: "Proxies that were asked to reconnect to another replica."}),
		known: prometheus.NewGauge(prometheus.GaugeOpts{Name: "outrigger_control_replicas", Help: "Replicas that respond and accept proxies, including this one; 0 before the first round."}),
		mean:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "outrigger_control_replica_mean_proxies", Help: "Proxies of one replica on average."}),
	}
	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{b.moved, b.known, b.mean} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("registering metrics of replicas: %w", err)
			}
		}
	}
	return b, nil
}

// ServeHTTP reports the load of this replica to others.
func (b *Balancer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Load{ID: b.id, Proxies: b.cfg.Load(), Ready: b.cfg.Ready()}) // the client may have left
}

// Run queries the other replicas and disconnects surplus proxies until ctx is done.
func (b *Balancer) Run(ctx context.Context) error {
	for {
		every := jitter(b.cfg.Every)
		if err := b.shed(ctx, b.surplus(ctx), every); err != nil {
			return nil // ctx is done
		}
	}
}

// shed disconnects n proxies, spread over the given time, and returns at its end.
func (b *Balancer) shed(ctx context.Context, n int, over time.Duration) error {
	for range n {
		if err := sleep(ctx, over/time.Duration(n+1)); err != nil {
			return err
		}
		if b.cfg.Shed() {
			b.moved.Inc()
		}
	}
	return sleep(ctx, over/time.Duration(n+1))
}

// surplus returns the number of proxies to disconnect in this round.
func (b *Balancer) surplus(ctx context.Context) int {
	loads, err := b.ask(ctx)
	if err != nil {
		b.cfg.Logger.Warn("the other replicas of the control plane are unknown; load is not balanced", "err", err)
	}
	own := b.cfg.Load()
	now := round{replicas: 1, proxies: own}
	for _, l := range loads {
		now.replicas++
		now.proxies += l.Proxies
	}
	before := b.last
	b.last = now
	mean := float64(now.proxies) / float64(now.replicas)
	b.known.Set(float64(now.replicas))
	b.mean.Set(mean)
	switch excess := float64(own) - math.Ceil(mean); {
	case !b.cfg.Ready(), now.replicas < 2, now.replicas != before.replicas:
	case math.Abs(float64(now.proxies-before.proxies)) > calm*float64(before.proxies):
	case excess >= atLeast && float64(own) > mean*(1+tolerance):
		n := min(int(excess), max(1, int(share*float64(own))))
		b.cfg.Logger.Info("this replica has more proxies than the others; some are asked to reconnect", "count", n)
		return n
	}
	return 0
}

// ask returns the loads of the other replicas that respond and accept proxies.
func (b *Balancer) ask(ctx context.Context) (map[string]Load, error) {
	addresses, err := b.cfg.Peers(ctx)
	if err != nil {
		return nil, err
	}
	addresses = addresses[:min(len(addresses), maxPeers)]
	var mu sync.Mutex // guards loads
	loads := map[string]Load{}
	var all sync.WaitGroup
	for _, address := range addresses {
		all.Go(func() {
			l, err := b.load(ctx, address)
			if err != nil {
				b.cfg.Logger.Debug("a replica of the control plane does not answer", "address", address, "err", err)
				return
			}
			if l.ID == b.id || !l.Ready {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			loads[l.ID] = l
		})
	}
	all.Wait()
	return loads, nil
}

func (b *Balancer) load(ctx context.Context, address string) (l Load, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+Path, nil)
	if err != nil {
		return l, fmt.Errorf("address of a replica: %w", err)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return l, err
	}
	defer func() { _ = resp.Body.Close() }() // an error after reading has no effect
	if resp.StatusCode != http.StatusOK {
		return l, fmt.Errorf("replica %s: status %d", address, resp.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&l); err != nil {
		return l, fmt.Errorf("replica %s: %w", address, err)
	}
	if l.ID == "" || l.Proxies < 0 || l.Proxies > math.MaxInt32 {
		return l, fmt.Errorf("replica %s: invalid response, id %q and %d proxies", address, l.ID, l.Proxies)
	}
	return l, nil
}

// jitter returns a duration that varies by up to 10%, so that replicas do not act at the same
// time.
func jitter(d time.Duration) time.Duration {
	return d*9/10 + mathrand.N(d/5+1)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
