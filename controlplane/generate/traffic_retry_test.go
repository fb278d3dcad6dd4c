// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package generate

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"
)

func timeoutRules() []routing {
	return []routing{
		{name: "timeout", http: `
- match: [{uri: {prefix: /short}}]
  timeout: 0.3s
  $A
- match: [{uri: {prefix: /none}}]
  timeout: 0s
  $A
- $A`, requests: []request{
			{send: "GET /short", header: "x-test-wait: 20s", status: 504, to: "a", atLeast: 250 * time.Millisecond, atMost: 10 * time.Second},
			{send: "GET /short", to: "a"},
			{send: "GET /none", header: "x-test-wait: 400ms", to: "a", atLeast: 400 * time.Millisecond},
			{send: "GET /", header: "x-test-wait: 400ms", to: "a", atLeast: 400 * time.Millisecond},
		}},
		{name: "deadline", http: `
- match: [{uri: {prefix: /bounded}}]
  timeout: 0.3s
  route: [{destination: {host: grpc}}]
- route: [{destination: {host: grpc}}]`, requests: []request{
			// The timeout of a route applies also to requests with a deadline; without one, the deadline.
			{
				send: "POST /own", header: "content-type: application/grpc; grpc-timeout: 300m; x-test-wait: 20s", to: "grpc",
				answer: "Grpc-Status: 4", atLeast: 250 * time.Millisecond, atMost: 10 * time.Second,
			},
			{
				send: "POST /bounded", header: "content-type: application/grpc; grpc-timeout: 20S; x-test-wait: 20s", to: "grpc",
				answer: "Grpc-Status: 14", atLeast: 250 * time.Millisecond, atMost: 10 * time.Second,
			},
			{
				send: "POST /bounded", header: "content-type: application/grpc; x-test-wait: 20s", to: "grpc",
				answer: "Grpc-Status: 14", atLeast: 250 * time.Millisecond, atMost: 10 * time.Second,
			},
			{send: "POST /bounded", header: "x-test-wait: 20s", status: 504, to: "grpc", atLeast: 250 * time.Millisecond, atMost: 10 * time.Second},
			{send: "POST /", header: "content-type: application/grpc; grpc-timeout: 20S; x-test-wait: 400ms", to: "grpc", atLeast: 400 * time.Millisecond},
		}},
	}
}

func retryRules() []routing {
	return []routing{
		{name: "retries", http: `
- match: [{uri: {prefix: /none}}]
  retries: {attempts: 0}
  $A
- match: [{uri: {prefix: /four}}]
  retries: {attempts: 4, retryOn: 5xx, backoff: 0.001s}
  $A
- match: [{uri: {prefix: /codes}}]
  retries: {attempts: 1, retryOn: "gateway-error,409", retryRemoteLocalities: true}
  $A
- match: [{uri: {prefix: /reset}}]
  retries: {attempts: 1, retryOn: reset}
  $A
- match: [{uri: {prefix: /try}}]
  retries: {attempts: 2, perTryTimeout: 0.1s, retryOn: 5xx, backoff: 0.001s}
  $A
- match: [{uri: {prefix: /other}}]
  retries: {attempts: 1, retryOn: 5xx}
  route: [{destination: {host: flaky}}]
- match: [{uri: {prefix: /same}}]
  retries: {attempts: 1, retryOn: 5xx, retryIgnorePreviousHosts: false}
  $B
- $A`, requests: []request{
			{send: "GET /", header: "x-test-fail: 1 503", to: "a", tries: 2, arrives: "X-Envoy-Attempt-Count: 2"},
			{send: "GET /", header: "x-test-fail: 2 503", to: "a", tries: 3},
			{send: "GET /", header: "x-test-fail: 9 503", status: 503, to: "a", tries: 3},
			{send: "GET /", header: "x-test-fail: 9 500", status: 500, to: "a", tries: 1},
			{send: "GET /", header: "x-test-fail: 9 502", status: 502, to: "a", tries: 1},
			{send: "GET /none", header: "x-test-fail: 9 503", status: 503, to: "a", tries: 1},
			{send: "GET /four", header: "x-test-fail: 4 500", to: "a", tries: 5, arrives: "X-Envoy-Attempt-Count: 5"},
			{send: "GET /four", header: "x-test-fail: 9 500", status: 500, to: "a", tries: 5},
			{send: "GET /four", header: "x-test-fail: 9 404", status: 404, to: "a", tries: 1},
			{send: "GET /codes", header: "x-test-fail: 1 409", to: "a", tries: 2},
			{send: "GET /codes", header: "x-test-fail: 1 502", to: "a", tries: 2},
			{send: "GET /codes", header: "x-test-fail: 9 500", status: 500, to: "a", tries: 1},
			{send: "GET /reset", header: "x-test-fail: 1 reset", to: "a", tries: 2},
			{send: "GET /try", header: "x-test-wait: 20s", status: 504, to: "a", tries: 3, atLeast: 250 * time.Millisecond, atMost: 10 * time.Second},
			{send: "GET /other", header: "x-test-fail: 1 503", to: "f0", tries: 2, differ: true},
			{send: "GET /same", header: "x-test-fail: 1 503", to: "b", tries: 2},
		}},
		{name: "elsewhere", http: `
- match: [{uri: {prefix: /anywhere}}]
  retries: {attempts: 1, retryOn: 5xx, retryIgnorePreviousHosts: false}
  route: [{destination: {host: random}}]
- route: [{destination: {host: random}}]`},
		// A route for the host of a service without a VirtualService.
		{name: "retries-default", spec: "hosts: [elsewhere.test]", http: `- $A`, requests: []request{
			{send: "GET /", host: "shop", header: "x-test-fail: 1 503", to: "a", tries: 2, differ: true},
		}},
	}
}

func faultRules() []routing {
	return []routing{
		{name: "fault", http: `
- match: [{uri: {prefix: /delay}}]
  fault: {delay: {fixedDelay: 0.3s, percentage: {value: 100}}}
  $A
- match: [{uri: {prefix: /old-delay}}]
  fault: {delay: {fixedDelay: 0.3s, percent: 100}}
  $A
- match: [{uri: {prefix: /abort}}]
  fault: {abort: {httpStatus: 418, percentage: {value: 100}}}
  $A
- match: [{uri: {prefix: /grpc}}]
  fault: {abort: {grpcStatus: RESOURCE_EXHAUSTED, percentage: {value: 100}}}
  $A
- match: [{uri: {prefix: /both}}]
  fault: {delay: {fixedDelay: 0.3s, percentage: {value: 100}}, abort: {httpStatus: 500, percentage: {value: 100}}}
  $A
- match: [{uri: {prefix: /never}}]
  fault: {delay: {fixedDelay: 20s, percentage: {value: 0}}, abort: {httpStatus: 500, percentage: {value: 0}}}
  $A
- match: [{uri: {prefix: /unset}}]
  fault: {delay: {fixedDelay: 20s}, abort: {httpStatus: 500}}
  $A
- $A`, requests: []request{
			{send: "GET /delay", to: "a", atLeast: 250 * time.Millisecond},
			{send: "GET /old-delay", to: "a", atLeast: 250 * time.Millisecond},
			{send: "GET /abort", status: 418, body: "fault filter abort"},
			{send: "POST /grpc", header: "content-type: application/grpc", answer: "Grpc-Status: 8"},
			{send: "POST /grpc", body: "fault filter abort"},
			{send: "GET /both", status: 500, atLeast: 250 * time.Millisecond},
			{send: "GET /never", to: "a", atMost: 10 * time.Second},
			{send: "GET /unset", to: "a", atMost: 10 * time.Second},
			{send: "GET /", to: "a"},
		}},
	}
}

// checkElsewhere counts the retries that reach the other one of two endpoints. Each is selected at
// random: with up to six attempts to find another one, or one.
func (w *traffic) checkElsewhere(t *testing.T) {
	const sent = 100
	for path, bounds := range map[string][2]int{"/": {sent * 9 / 10, sent}, "/anywhere": {sent / 4, sent * 3 / 4}} {
		elsewhere := 0
		for i := range sent {
			id := fmt.Sprintf("%s%s/%d", t.Name(), path, i)
			w.send(t, w.client, http.MethodGet, "http://elsewhere.test"+path, headers(t, idHeader+": "+id+"; "+failHeader+": 1 503"), "")
			if tries := names(w.journal.wait(t, id, 2)); len(slices.Compact(tries)) == 2 {
				elsewhere++
			}
		}
		if elsewhere < bounds[0] || elsewhere > bounds[1] {
			t.Errorf("%s: %d of %d second tries came to another endpoint, want between %d and %d", path, elsewhere, sent, bounds[0], bounds[1])
		}
	}
}
