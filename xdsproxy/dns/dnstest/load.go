// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dnstest

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	miekg "github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
)

const (
	headerLen  = 12
	answerTime = 2 * time.Second // default of Load.Patience
)

// Load sends requests to a server over UDP and measures the answers.
type Load struct {
	// Address is the address of the server.
	Address string
	// Names are queried in turn. They must have addresses.
	Names []string
	// Type is the record type to query. 0 means A.
	Type uint16
	// Clients is the number of concurrent clients, each with its own socket and one request at a
	// time. 0 means 8.
	Clients int
	// Duration is the duration of the load. 0 means one second.
	Duration time.Duration
	// Rate is the total number of requests per second. 0 means unlimited.
	Rate int
	// Patience is how long a client waits for an answer before it counts the request as lost. 0
	// means 2 seconds.
	Patience time.Duration
}

// Result is the result of a load.
type Result struct {
	Answers int
	Lost    int // requests without an answer
	Wrong   int // answers without a record or to another request
	Elapsed time.Duration
	P50     time.Duration
	P99     time.Duration
	Max     time.Duration
}

// PerSecond returns the number of answers per second.
func (r Result) PerSecond() float64 { return float64(r.Answers) / r.Elapsed.Seconds() }

func (r Result) String() string {
	return fmt.Sprintf("%d answers in %s, %.0f/s, p50 %s, p99 %s, max %s, %d lost, %d wrong",
		r.Answers, r.Elapsed.Round(time.Millisecond), r.PerSecond(), r.P50, r.P99, r.Max, r.Lost, r.Wrong)
}

// Run generates the load until the duration is over or ctx is done.
func (l Load) Run(ctx context.Context) (Result, error) {
	requests, err := l.requests()
	if err != nil {
		return Result{}, err
	}
	clients, duration := l.Clients, l.Duration
	if clients == 0 {
		clients = 8
	}
	if duration == 0 {
		duration = time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	var turn atomic.Uint64
	each := make([]client, clients)
	begin := time.Now()
	var g errgroup.Group
	for i := range each {
		g.Go(func() error { return each[i].run(ctx, l, requests, begin, &turn) })
	}
	if err := g.Wait(); err != nil {
		return Result{}, fmt.Errorf("ask %s: %w", l.Address, err)
	}
	return sum(each, time.Since(begin)), nil
}

func (l Load) requests() (all [][]byte, err error) {
	kind := l.Type
	if kind == 0 {
		kind = miekg.TypeA
	}
	for _, name := range l.Names {
		b, err := new(miekg.Msg).SetQuestion(miekg.Fqdn(name), kind).Pack()
		if err != nil {
			return nil, fmt.Errorf("ask for %q: %w", name, err)
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return nil, errors.New("there is no name to query")
	}
	return all, nil
}

// client is one client of the load.
type client struct {
	took        []time.Duration
	lost, wrong int
}

func (c *client) run(ctx context.Context, l Load, requests [][]byte, begin time.Time, turn *atomic.Uint64) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", l.Address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // no data can be lost
	buffer, request := make([]byte, 4096), make([]byte, 0, 512)
	for ctx.Err() == nil {
		n := turn.Add(1)
		if l.Rate > 0 {
			due := begin.Add(time.Duration(n) * time.Second / time.Duration(l.Rate))
			time.Sleep(time.Until(due))
		}
		request = append(request[:0], requests[n%uint64(len(requests))]...)
		binary.BigEndian.PutUint16(request, uint16(n))
		sent := time.Now()
		if _, err := conn.Write(request); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(sent.Add(cmp.Or(l.Patience, answerTime))); err != nil {
			return err
		}
		size, err := conn.Read(buffer)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.lost++
		case err != nil:
			return err
		case size < headerLen || binary.BigEndian.Uint16(buffer) != uint16(n) || buffer[3]&0xF != 0 || binary.BigEndian.Uint16(buffer[6:]) == 0:
			c.wrong++
		default:
			c.took = append(c.took, time.Since(sent))
		}
	}
	return nil
}

func sum(each []client, elapsed time.Duration) Result {
	r := Result{Elapsed: elapsed}
	var all []time.Duration
	for _, c := range each {
		all = append(all, c.took...)
		r.Lost, r.Wrong = r.Lost+c.lost, r.Wrong+c.wrong
	}
	if r.Answers = len(all); r.Answers == 0 {
		return r
	}
	slices.Sort(all)
	r.P50, r.P99, r.Max = all[len(all)/2], all[len(all)*99/100], all[len(all)-1]
	return r
}
