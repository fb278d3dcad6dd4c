// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package discovery

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// debugType is the type of a question of people, whose one name is what they
// ask for, and of its answer. A longer type, istio.io/debug/syncz, says itself
// what is asked for; its names are the proxy, as istioctl has it.
const debugType = "istio.io/debug"

// Questions of a stream: each may cost as much as a push.
const (
	debugEvery = 100 * time.Millisecond
	debugBurst = 20
	maxDebug   = 1 << 10 // bytes of a name
)

// debugger answers one question.
type debugger struct {
	*Server
	mesh  *snapshot.Mesh
	asks  *stream
	query url.Values
}

// answerOf is an answer: messages, or what becomes JSON.
type answerOf struct {
	messages []proto.Message
	names    []string // of the messages
	json     any
}

// debugAnswer makes an answer. Those of wide speak of all of the mesh and are
// for the root namespace alone; the others show each caller its own namespace.
type debugAnswer struct {
	wide   bool
	answer func(debugger) (answerOf, error)
}

// debugAnswers are what can be asked for, by name. The names and their content
// are those of Istio's control plane where it has them.
func debugAnswers() map[string]debugAnswer {
	return map[string]debugAnswer{
		"list":        {false, func(debugger) (answerOf, error) { return answerOf{json: slices.Sorted(maps.Keys(debugAnswers()))}, nil }},
		"syncz":       {false, debugger.syncz},
		"connections": {false, debugger.connections},
		"config_dump": {false, debugger.configDump},
		"ndsz":        {false, debugger.ndsz},
		"edsz":        {false, debugger.edsz},
		"registryz":   {true, func(d debugger) (answerOf, error) { return answerOf{json: d.mesh.Services.Sorted}, nil }},
		"push_status": {true, func(d debugger) (answerOf, error) { return answerOf{json: orEmpty(d.mesh.Problems)}, nil }},
		"mesh":        {true, func(d debugger) (answerOf, error) { return answerOf{json: asJSON{d.mesh.Config}}, nil }},
	}
}

// isDebug reports whether a request is a question of people.
func isDebug(typeURL string) bool {
	return typeURL == debugType || strings.HasPrefix(typeURL, debugType+"/")
}

// answerDebug answers a question on the stream that it came on. What is not
// answered is said in the answer: a person waits for it, and the stream has
// other things to carry.
func (s *stream) answerDebug(q *request) error {
	if q.nonce != "" || q.rejected != "" {
		return nil // an answer to an answer
	}
	names := q.subscribe
	if !s.delta {
		names = q.names()
	}
	if s.questions == nil {
		s.questions = rate.NewLimiter(rate.Every(debugEvery), debugBurst)
	}
	answer, err := s.debug(q.typeURL, names)
	var resources []*generate.Resource
	if err == nil {
		resources, err = answer.resources(q.typeURL, names)
	}
	if err != nil {
		s.log.Debug("a question is not answered", "type_url", q.typeURL, "err", err)
		if resources, err = (answerOf{json: map[string]string{"error": err.Error()}}).resources(q.typeURL, names); err != nil {
			return err // not possible: it is text
		}
	}
	s.nonces++
	r := &response{typeURL: q.typeURL, nonce: strconv.FormatUint(s.nonces, 36), body: encode(resources, s.delta)}
	return s.sendMsg(r.frame())
}

func (s *stream) debug(typeURL string, names []string) (answerOf, error) {
	if s.caller == nil || !s.secure {
		return answerOf{}, errors.New("questions are answered on streams that are encrypted and have shown who they are: connect to the port with TLS")
	}
	if !s.questions.Allow() {
		return answerOf{}, errors.New("too many questions, ask again in a moment")
	}
	what, typed := strings.CutPrefix(typeURL, debugType+"/")
	query := url.Values{}
	if len(names) > 1 {
		return answerOf{}, fmt.Errorf("one question is answered at a time, not %d", len(names))
	}
	name := strings.Join(names, "")
	if len(name) > maxDebug {
		return answerOf{}, fmt.Errorf("the question has %d bytes, at most %d are read", len(name), maxDebug)
	}
	if typed && name != "" {
		query.Set("proxyID", name)
	} else if !typed {
		u, err := url.Parse(name)
		if err != nil {
			return answerOf{}, fmt.Errorf("the question %q cannot be read", name)
		}
		what, query = strings.Trim(u.Path, "/"), u.Query()
	}
	d, ok := debugAnswers()[what]
	if !ok {
		return answerOf{}, fmt.Errorf("%q is not known here, ask for one of: %s", what, strings.Join(slices.Sorted(maps.Keys(debugAnswers())), ", "))
	}
	q := debugger{Server: s.server, mesh: s.mesh.Mesh, asks: s, query: query}
	if d.wide && !q.mayAll() {
		return answerOf{}, fmt.Errorf("%s is for callers of the namespace %s, and this is %s", what, q.root(), s.caller.ID)
	}
	answer, err := d.answer(q)
	if err == nil && !typed {
		answer.messages, err = nil, answer.fillJSON()
	}
	return answer, err
}

// fillJSON makes JSON of messages.
func (a *answerOf) fillJSON() error {
	if a.json != nil || len(a.messages) == 0 {
		return nil
	}
	all := make([]asJSON, len(a.messages))
	for i, m := range a.messages {
		typed, err := anypb.New(m) // says in JSON what it is
		if err != nil {
			return fmt.Errorf("write %s: %w", a.names[i], err)
		}
		all[i] = asJSON{typed}
	}
	a.json = map[string]any{"configs": all}
	return nil
}

// resources makes the resources of an answer.
func (a answerOf) resources(typeURL string, names []string) ([]*generate.Resource, error) {
	if a.messages == nil {
		b, err := json.MarshalIndent(a.json, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("write the answer to %s: %w", typeURL, err)
		}
		return []*generate.Resource{{Name: cmp.Or(strings.Join(names, ","), typeURL), Any: rawAny(debugType, b)}}, nil
	}
	out := make([]*generate.Resource, len(a.messages))
	for i, m := range a.messages {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("write the answer to %s: %w", typeURL, err)
		}
		out[i] = &generate.Resource{Name: a.names[i], Any: rawAny("type.googleapis.com/"+string(proto.MessageName(m)), b)}
	}
	return out, nil
}

// rawAny is a serialized google.protobuf.Any.
func rawAny(typeURL string, value []byte) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), typeURL)
	return protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), value)
}

func (d debugger) root() string { return cmp.Or(d.mesh.Config.GetRootNamespace(), "istio-system") }

// mayAll reports whether the caller sees all of the mesh.
func (d debugger) mayAll() bool { return d.asks.caller.ID.Namespace == d.root() }

// visible are the streams that the caller sees, by proxy.
func (d debugger) visible() []*stream {
	all, own := d.mayAll(), d.asks.caller.ID.Namespace
	var out []*stream
	d.mu.Lock()
	for st := range d.streams {
		if all || st.proxy.Namespace == own {
			out = append(out, st)
		}
	}
	d.mu.Unlock()
	slices.SortFunc(out, func(a, b *stream) int {
		return cmp.Or(strings.Compare(a.proxy.ID, b.proxy.ID), cmp.Compare(a.number, b.number))
	})
	return out
}

// proxy is who a question is about: the proxyID of the query, or who asks. Of
// several streams of a proxy it is the newest.
func (d debugger) proxy() (*model.Proxy, error) {
	id := d.query.Get("proxyID")
	if id == "" {
		return d.asks.proxy, nil
	}
	var found *stream
	for _, st := range d.visible() {
		if st.proxy.ID == id {
			found = st
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no proxy %q is connected that %s may ask about", id, d.asks.caller.ID)
	}
	return found.proxy, nil
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
