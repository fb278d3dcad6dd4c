// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"crypto/tls"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
)

// hook runs a preStop hook as the kubelet does, with a timeout, and returns its result.
//
// The request and the rule for redirects are the kubelet's own. Its package pkg/kubelet/lifecycle
// is reimplemented here, because it depends on the scheduler and forty more modules: a response
// with any status is a success; at most 10 KiB of its body are read; a request with TLS to a server
// without TLS is repeated without it.
func hook(t *testing.T, action corev1.HTTPGetAction, ip string, timeout time.Duration) error {
	t.Helper()
	req, err := httpprobe.NewRequestForHTTPGetAction(&action, &corev1.Container{}, ip, "lifecycle")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		CheckRedirect: httpprobe.RedirectChecker(false),
		Timeout:       timeout, // the kubelet's is the pod's grace period
	}
	defer client.CloseIdleConnections()
	send := func(req *http.Request) error {
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 10<<10) // its content is irrelevant
		return resp.Body.Close()
	}
	err = send(req)
	if err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		req = req.Clone(t.Context())
		req.URL.Scheme = "http"
		req.Header.Del("Authorization")
		err = send(req)
	}
	return err
}

// connection is the header in which hooks differ: the kubelet keeps connections of hooks alive, the
// agent does not.
var connection = regexp.MustCompile(`\n  Connection: \["close"\]`)

// TestHooks runs each hook directly and through the agent: both succeed or both fail, and the
// application sees the same requests.
func TestHooks(t *testing.T) {
	t.Parallel()
	const path = "/app-lifecycle/app/prestopz"
	plain := httpCase{name: "TLS that is none", handler: mirror, scheme: corev1.URISchemeHTTPS, headers: header("Authorization", "a", "X-A", "1")}
	nobody := httpCase{name: "nobody", handler: mirror}
	for _, table := range [][]httpCase{bodies, requests, paths, redirects(), slow, broken, secured(t), {plain, nobody}} {
		for _, c := range table {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				saw := &memory{}
				action := c.serve(t, podIP, saw)
				if c.name == nobody.name {
					action.Port = intstr.FromInt(1)
				}
				port := statusServer(t, podIP, map[string]any{path: corev1.LifecycleHandler{HTTPGet: &action}})

				timeout := ample
				if c.timeout != 0 {
					timeout = c.timeout
				}
				straight := hook(t, action, podIP, timeout)
				sawStraight := connection.ReplaceAllString(saw.take(), "")
				through := hook(t, corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(port), Scheme: corev1.URISchemeHTTP, HTTPHeaders: action.HTTPHeaders}, podIP, timeout)
				sawThrough := connection.ReplaceAllString(saw.take(), "")
				if (straight == nil) != (through == nil) {
					t.Errorf("direct: %v; through the agent: %v", straight, through)
				}
				if c.name == nobody.name && straight == nil {
					t.Error("a hook without a server succeeded")
				}
				if !c.unseen && sawStraight != sawThrough {
					t.Errorf("the application saw direct:\n%s\nthrough the agent:\n%s", sawStraight, sawThrough)
				}
			})
		}
	}
}
