// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
)

// request is what both kinds of request have in common: a subscription, or an
// answer to the response of a nonce.
type request struct {
	typeURL, version, nonce string
	// has is what a new subscription starts from (delta).
	has map[string]string
	// rejected is nil if the response was taken.
	rejected error
}

func (r request) errorDetail() *rpcstatus.Status {
	if r.rejected == nil {
		return nil
	}
	return &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: r.rejected.Error()}
}

// response is what both kinds of response have in common.
type response struct {
	typeURL, version, nonce string
	// full means that resources are all there are.
	full      bool
	resources []named
	removed   []string
}

// named is one resource. A full state has no names and no versions.
type named struct {
	name, version string
	resource      *anypb.Any
}

// sum is a hash of what a response holds.
func (r *response) sum() uint64 {
	d := xxhash.New()
	for _, res := range r.resources {
		// The digest never fails.
		_, _ = d.WriteString(res.name)
		_, _ = d.WriteString(res.resource.GetTypeUrl())
		_, _ = d.Write(res.resource.GetValue())
	}
	return d.Sum64()
}

// wire is one stream of either kind.
type wire interface {
	send(request) error
	receive() (*response, error)
	// Header waits until the server has accepted the stream.
	Header() (metadata.MD, error)
}

// open opens a stream. Whether the server takes it comes later.
func (s *Store) open(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) (wire, error) {
	if s.delta {
		stream, err := client.DeltaAggregatedResources(ctx)
		return deltaWire{stream, s.node}, err
	}
	stream, err := client.StreamAggregatedResources(ctx)
	return fullWire{stream, s.node}, err
}

// fullWire speaks of full states.
type fullWire struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	node node
}

func (w fullWire) send(r request) error {
	return w.Send(&discoveryv3.DiscoveryRequest{
		Node: w.node.Node, TypeUrl: r.typeURL, VersionInfo: r.version, ResponseNonce: r.nonce, ErrorDetail: r.errorDetail(),
	})
}

func (w fullWire) receive() (*response, error) {
	m, err := w.Recv()
	if err != nil {
		return nil, err
	}
	r := &response{typeURL: m.GetTypeUrl(), version: m.GetVersionInfo(), nonce: m.GetNonce(), full: true}
	for _, res := range m.GetResources() {
		r.resources = append(r.resources, named{resource: res})
	}
	return r, nil
}

// deltaWire speaks of changes.
type deltaWire struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node node
}

func (w deltaWire) send(r request) error {
	return w.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: w.node.Node, TypeUrl: r.typeURL, ResponseNonce: r.nonce, InitialResourceVersions: r.has, ErrorDetail: r.errorDetail(),
	})
}

func (w deltaWire) receive() (*response, error) {
	m, err := w.Recv()
	if err != nil {
		return nil, err
	}
	r := &response{typeURL: m.GetTypeUrl(), version: m.GetSystemVersionInfo(), nonce: m.GetNonce(), removed: m.GetRemovedResources()}
	for _, res := range m.GetResources() {
		r.resources = append(r.resources, named{res.GetName(), res.GetVersion(), res.GetResource()})
	}
	return r, nil
}

// A server may resend at once what was rejected: the next rejection is delayed,
// from firstRejectWait to longestRejectWait.
const (
	firstRejectWait   = time.Second
	longestRejectWait = time.Minute
	// patience is how long a server may leave a type unanswered before that
	// is logged.
	patience = 30 * time.Second
)

// session is one stream. The goroutine of run owns it.
type session struct {
	*Store
	wire wire
	// taken are the versions that were taken last, by type.
	taken map[string]string
	// rejections are the types whose last response was rejected.
	rejections map[string]*rejectedType
}

// rejectedType is what is known of a type whose last response was rejected.
type rejectedType struct {
	sum  uint64
	wait time.Duration
	// answer waits until due; nil if it was sent.
	answer *request
	due    time.Time
}

// run subscribes to every type, and applies and answers what comes, until the
// stream ends, which end makes it do. It always returns an error.
func (s *session) run(ctx context.Context, end context.CancelFunc) error {
	if err := s.subscribe(); err != nil {
		return err
	}
	in := incoming{accepted: make(chan struct{}), responses: make(chan *response), ended: make(chan error, 1)}
	gone, accepted := make(chan struct{}), in.accepted
	go func() { defer close(gone); in.receive(ctx, s.wire) }()
	defer func() { end(); <-gone }()
	impatient := time.NewTimer(patience)
	defer impatient.Stop()
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-in.ended:
			return endOf(err)
		case <-accepted:
			s.found()
			accepted = nil // once
		case r := <-in.responses:
			err = s.answer(r)
		case <-later.C:
			err = s.sendDue()
		case <-impatient.C:
			if types := s.Waiting(); len(types) > 0 {
				s.tell(fmt.Errorf("the store is not complete, because for %s the server has not responded for %s", patience, strings.Join(types, ", ")))
			}
		}
		if errors.Is(err, io.EOF) {
			return endOf(in.end()) // the one who receives knows why
		}
		if err != nil {
			return err
		}
		if due, ok := s.due(); ok {
			later.Reset(time.Until(due))
		}
	}
}

// subscribe asks for every type.
func (s *session) subscribe() error {
	for _, w := range s.order {
		r := request{typeURL: w.typeURL}
		if s.delta {
			s.mu.Lock()
			r.has = w.versions()
			s.mu.Unlock()
		}
		err := s.wire.send(r)
		if errors.Is(err, io.EOF) {
			for err = nil; err == nil; _, err = s.wire.receive() { // says in the end why the stream has ended
			}
			return endOf(err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// incoming is what comes from the server.
type incoming struct {
	accepted  chan struct{} // closed when the server has accepted the stream
	responses chan *response
	ended     chan error // has room for one
}

// receive hands over what comes until the stream or ctx ends.
func (in incoming) receive(ctx context.Context, w wire) {
	if _, err := w.Header(); err == nil {
		close(in.accepted)
	}
	for {
		r, err := w.receive()
		if err != nil {
			in.ended <- err
			return
		}
		select {
		case in.responses <- r:
		case <-ctx.Done():
			in.ended <- ctx.Err()
			return
		}
	}
}

// end waits for the end of a stream that takes no requests any more. What comes
// before it is sent again on the next one.
func (in incoming) end() error {
	for {
		select {
		case <-in.responses:
		case err := <-in.ended:
			return err
		}
	}
}

// endOf says of a stream that ended well that it ended.
func endOf(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return errors.New("the server ended the stream")
	}
	return err
}

// answer applies a response and sends the answer, or has it wait.
func (s *session) answer(r *response) error {
	if s.watches[r.typeURL] == nil {
		s.log.Debug("a response of a type that was not requested is ignored", "type_url", quote(r.typeURL))
		return nil
	}
	q := request{typeURL: r.typeURL, nonce: r.nonce}
	if q.rejected = s.apply(r); q.rejected == nil {
		s.taken[r.typeURL] = r.version
		delete(s.rejections, r.typeURL)
		q.version = r.version
		return s.wire.send(q)
	}
	q.version = s.taken[r.typeURL]
	sum, old := r.sum(), s.rejections[r.typeURL]
	now := &rejectedType{sum: sum}
	s.rejections[r.typeURL] = now
	if old == nil || old.sum != sum {
		s.log.Warn("invalid objects in a response of the configuration server; the valid ones take effect", "name", s.name, "type_url", r.typeURL, "reason", q.rejected.Error())
		return s.wire.send(q)
	}
	now.wait = min(max(2*old.wait, firstRejectWait), longestRejectWait)
	now.answer, now.due = &q, time.Now().Add(now.wait)
	return nil
}

// due is when the next answer that waits has to be sent.
func (s *session) due() (next time.Time, ok bool) {
	for _, r := range s.rejections {
		if r.answer != nil && (!ok || r.due.Before(next)) {
			next, ok = r.due, true
		}
	}
	return next, ok
}

// sendDue sends the answers whose time has come.
func (s *session) sendDue() error {
	for _, r := range s.rejections {
		if r.answer != nil && time.Until(r.due) <= 0 {
			q := *r.answer
			r.answer = nil
			if err := s.wire.send(q); err != nil {
				return err
			}
		}
	}
	return nil
}
