// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package debug

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/lru"
)

// Answers that are kept for others that ask the same.
const (
	maxKept      = 8       // answers
	maxKeptBytes = 4 << 20 // of each, compressed
	maxKeptKey   = 1 << 10 // bytes of the question
	// maxAge is how old an answer may be for a caller that accepts an older one.
	maxAge = time.Second
	// leastZipped is the length from which an answer is compressed.
	leastZipped = 1 << 10
)

// sharedAnswers are the names of answers that are kept: those that commands and pages ask for again and
// again, and that depend on the question and what its caller sees alone. It is never written to.
var sharedAnswers = map[string]bool{"proxies": true, "history": true, "analyze": true, "syncz": true}

// reply is an answer as it is sent.
type reply struct {
	body   []byte
	zipped bool
	tag    string // empty for one that is not shared
}

// shared keeps the newest answer to each question.
type shared struct {
	mu   sync.Mutex
	kept *lru.Map[string, *kept]
}

func newShared() *shared { return &shared{kept: lru.New[string, *kept](maxKept)} }

// kept is the newest answer to a question.
type kept struct {
	turn  chan struct{} // has a token while the answer is made, or read
	began time.Time     // the answer is about this moment, or a later one
	reply reply
}

// of returns what is kept for the question of a request; nil if its answer is not shared. Askers that see
// the same share it.
func (s *shared) of(r *http.Request, who asker) *kept {
	name := r.PathValue("name")
	if r.Method != http.MethodGet || !sharedAnswers[name] {
		return nil
	}
	key := name + "?" + r.URL.Query().Encode()
	if !who.all {
		key += " " + who.namespace
	}
	if len(key) > maxKeptKey {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kept.Get(key)
	if !ok {
		k = &kept{turn: make(chan struct{}, 1)}
		s.kept.Put(key, k)
	}
	return k
}

// fits returns the kept answer if it was made after a moment. The caller has the turn of k.
func (k *kept) fits(since time.Time, zipped bool) (reply, bool) {
	if !zipped || k.reply.tag == "" || !k.began.After(since) {
		return reply{}, false
	}
	return k.reply, true
}

// keep returns a new answer as it is sent, and keeps it. Its caller has the turn of k, or k is nil.
func (k *kept) keep(body []byte, began time.Time, zipped bool) reply {
	out := reply{body: body}
	if k != nil {
		sum := sha256.Sum256(body)
		out.tag = `W/"` + hex.EncodeToString(sum[:12]) + `"`
		if zipped && k.reply.tag == out.tag { // nothing has changed
			k.began = began
			return k.reply
		}
	}
	if !zipped || k == nil && len(body) < leastZipped {
		return out
	}
	out.body, out.zipped = zip(body), true
	if k != nil && len(out.body) <= maxKeptBytes {
		k.reply, k.began = out, began
	}
	return out
}

// zip compresses an answer, fast: a control plane has other things to do.
func zip(body []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	_, _ = w.Write(body) // to memory: cannot fail
	_ = w.Close()
	return out.Bytes()
}

// takesZipped reports whether a client accepts gzip. A client that weighs encodings receives plain text.
func takesZipped(h http.Header) bool {
	for one := range strings.SplitSeq(h.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(one) == "gzip" {
			return true
		}
	}
	return false
}

// accepted returns how old an answer may be by a request: no older than the request itself, unless it
// has Cache-Control: max-age=SECONDS.
func accepted(h http.Header) time.Duration {
	text, ok := strings.CutPrefix(h.Get("Cache-Control"), "max-age=")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return min(time.Duration(n)*time.Second, maxAge)
}

// send writes a reply, or only says that the client has it.
func (a reply) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // not by caches: a tool that watches compares with what it has
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding")
	if a.tag != "" {
		h.Set("ETag", a.tag)
		if r.Header.Get("If-None-Match") == a.tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if a.zipped {
		h.Set("Content-Encoding", "gzip")
	}
	_, _ = w.Write(a.body) // a client that is gone needs no answer
}
