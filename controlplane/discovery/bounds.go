// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/internal/connlimit"
	"github.com/outrigger-mesh/outrigger/internal/ratelimit"
)

// Limits of one request. Envoys and agents stay far below them;
// docs/operations/limits.md has the same table for operators.
const (
	// An Envoy lists its 600 extensions in 60 kB; the metadata contains a ProxyConfig
	// and the annotations of a pod, which may have 256 KiB.
	maxNode   = 512 << 10
	maxNodeID = 1 << 10
	// A pod has a few dozen.
	maxLabels = 1024
	// Type URLs, nonces and versions are shorter than 100 bytes.
	maxShortText = 512
	// Names of routes and hosts are built of DNS names, which have 253 bytes.
	maxName = 2 << 10
	// A mesh of 10,000 services has 50,000 names of endpoint resources.
	maxNames = 200_000
	// Envoy's reason names all resources that it rejected, and is searched for them.
	maxRejection = 64 << 10
	maxReason    = 1 << 10 // of that, in the log
)

// Limits of one stream, and of all streams of one caller from one address: the size of
// subscriptions in bytes, and the number of streams and requests.
const (
	perName          = 64 // overhead of a name in bytes
	maxStreamNames   = 24 << 20
	maxCallerNames   = 64 << 20
	maxCallerStreams = 64
	// Ten requests answer a push of all types. The first request of a delta proxy that
	// reconnects has some megabytes.
	requestsPerSecond = 200
	requestBurst      = 4000
	requestBytes      = 4 << 10 // a request of this size counts twice, and so on
	maxCallers        = 16384   // whose budgets are kept
)

// errTooLarge is wrapped by the errors of requests beyond a limit.
var errTooLarge = errors.New("the request is too large")

// tooLarge returns the error about a value beyond its limit.
func tooLarge(what string, size, limit int) error {
	return fmt.Errorf("%w: %s %d, at most %d", errTooLarge, what, size, limit)
}

// shortText stores a short text of a request.
func shortText(to *string, what string, v []byte) error {
	if len(v) > maxShortText {
		return tooLarge("bytes of "+what, len(v), maxShortText)
	}
	*to = string(v)
	return nil
}

// count checks and counts a name of a request.
func (q *request) count(name []byte) error {
	q.total++
	switch {
	case len(name) > maxName:
		return tooLarge("bytes of a resource name", len(name), maxName)
	case q.total > maxNames:
		return tooLarge("resource names", q.total, maxNames)
	}
	return nil
}

// checkNode refuses a node that is larger than any real one.
func checkNode(n *corev3.Node) error {
	if len(n.GetId()) > maxNodeID {
		return status.Error(codes.InvalidArgument, tooLarge("bytes of node.id", len(n.GetId()), maxNodeID).Error())
	}
	if labels := n.GetMetadata().GetFields()["LABELS"].GetStructValue().GetFields(); len(labels) > maxLabels {
		return status.Error(codes.InvalidArgument, tooLarge("labels of the node", len(labels), maxLabels).Error())
	}
	return nil
}

// clipped returns untrusted text at the length that errors and stored values may have.
func clipped(text string) string { return clip.Text(text, 300) }

// callers records the usage of each caller. Its size is bounded by the number of
// streams.
type callers struct {
	// streams is the maximum number of streams of a caller; its names and requests
	// are limited in proportion.
	streams int
	// requests are the callers' budgets of requests. They outlive streams.
	requests *ratelimit.Keyed[callerID]

	mu   sync.Mutex // guards byID and its values
	byID map[callerID]*callerUse
}

// newCallers returns callers with a limit of streams each, at least maxCallerStreams.
func newCallers(streams int) *callers {
	return &callers{streams: max(streams, maxCallerStreams), requests: ratelimit.NewKeyed[callerID](maxCallers), byID: map[callerID]*callerUse{}}
}

// callerID identifies a workload on one machine: replicas of a workload share an identity.
type callerID struct{ identity, address string }

// callerUse is the usage of all streams of a caller.
type callerUse struct {
	id      callerID
	streams int
	names   int // bytes
}

// quota is the usage of one stream.
type quota struct {
	callers *callers
	use     *callerUse
	names   int           // bytes
	budget  *rate.Limiter // of requests
}

// enter counts a new stream. leave must be called when it ends.
func (c *callers) enter(ctx context.Context, caller *authn.Caller) (*quota, error) {
	id := callerID{address: address(ctx)}
	if host, _, err := net.SplitHostPort(id.address); err == nil {
		id.address = host
	}
	if caller != nil {
		id.identity = caller.ID.String()
	}
	limit := ratelimit.Limit{PerSecond: float64(c.share(requestsPerSecond)), Burst: c.share(requestBurst)}
	if connlimit.Loopback(sourceOf(ctx)) { // workloads of this machine share an address
		return &quota{callers: c, use: &callerUse{id: id}, budget: rate.NewLimiter(requestsPerSecond, requestBurst)}, nil
	}
	h := &quota{callers: c, budget: c.requests.Bucket(id, limit)}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.use = c.byID[id]
	if h.use == nil {
		h.use = &callerUse{id: id}
		c.byID[id] = h.use
	}
	if h.use.streams >= c.streams {
		return nil, status.Errorf(codes.ResourceExhausted, "the caller has %d streams from one address, which is the limit", h.use.streams)
	}
	h.use.streams++
	return h, nil
}

// share scales a limit for maxCallerStreams streams to the streams that a caller may have.
func (c *callers) share(limit int) int { return limit * c.streams / maxCallerStreams }

// leave removes a stream from the usage.
func (a *quota) leave() {
	c := a.callers
	c.mu.Lock()
	defer c.mu.Unlock()
	a.use.names -= a.names
	a.names = 0
	if a.use.streams--; a.use.streams == 0 {
		delete(c.byID, a.use.id)
	}
}

// resize records the size of the stream's names in bytes.
func (a *quota) resize(names int) error {
	c := a.callers
	c.mu.Lock()
	defer c.mu.Unlock()
	a.use.names += names - a.names
	a.names = names
	switch {
	case names > maxStreamNames:
		return status.Errorf(codes.ResourceExhausted, "the stream requests names of %d bytes in total; at most %d are allowed", names, maxStreamNames)
	case a.use.names > c.share(maxCallerNames):
		return status.Errorf(codes.ResourceExhausted, "the caller's streams request names of %d bytes in total; at most %d are allowed", a.use.names, c.share(maxCallerNames))
	}
	return nil
}

// wait delays a request of a caller that sends too many, or too large ones.
func (a *quota) wait(ctx context.Context, size int) error {
	n := min(1+size/requestBytes, requestBurst)
	wait := a.budget.ReserveN(time.Now(), n).Delay()
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// slowed returns a function that receives requests of a stream and applies the budget.
func (a *quota) slowed(ctx context.Context, recv func() (*request, error)) func() (*request, error) {
	return func() (*request, error) {
		q, err := recv()
		if err != nil {
			return nil, err
		}
		if err := a.wait(ctx, q.size); err != nil {
			q.free()
			return nil, status.FromContextError(err).Err()
		}
		return q, nil
	}
}

// callersFault reports whether a stream ends because of an invalid request.
func callersFault(err error) bool {
	code := status.Code(err)
	return code == codes.InvalidArgument || code == codes.ResourceExhausted
}

// address returns where a stream comes from, for the log.
func address(ctx context.Context) string {
	if p, ok := grpcpeer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return "unknown"
}

// reserve takes what a request asks for from the caller's share, before anything
// is made for it; resized corrects it.
func (s *stream) reserve(q *request) error {
	total := q.wanted
	for typeURL, sub := range s.subs {
		if s.delta || typeURL != q.typeURL { // without delta a request names all
			total += sub.names.size
		}
	}
	return s.quota.resize(total)
}

// resized notes what the subscriptions of a stream hold.
func (s *stream) resized() error {
	total := 0
	for _, sub := range s.subs {
		total += sub.names.size
	}
	return s.quota.resize(total)
}

// maxRefused bounds the types of a stream that are remembered, and logged, as not
// served.
const maxRefused = 16

// refuse handles a request for a type that is not served here. The request gets no
// answer, and the stream continues, so that the proxy's other types are unaffected.
// An empty answer would be wrong: a proxy that has resources of the type from
// another server would drop them. Only the names of types that were logged are kept.
func (s *stream) refuse(typeURL string) {
	s.server.metrics.unserved.Inc()
	typeURL = clipped(typeURL)
	if _, told := s.refused[typeURL]; told || len(s.refused) == maxRefused {
		return
	}
	if s.refused == nil {
		s.refused = map[string]struct{}{}
	}
	s.refused[typeURL] = struct{}{}
	s.log.Warn("a proxy requests a type that is not served; the request is ignored", "type_url", typeURL)
}
