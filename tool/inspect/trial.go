// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// trialStart is how long the Envoy of a trial may take to listen.
	trialStart = 2 * time.Minute
	// trialPoll is how often that is looked at.
	trialPoll = 20 * time.Millisecond
	// maxTrialLog is how much of the log of an Envoy that does not start is printed, in bytes.
	maxTrialLog = 2000
)

// trial is an Envoy that decides about requests, in a directory of its own.
type trial struct {
	dir    string
	cmd    *exec.Cmd
	exited chan struct{}
	issuer *issuer
	at     map[string]string // addresses of the listeners by name

	text string // the configuration
}

// newTrial starts an Envoy with listeners, which name the files of the certificates. The caller ends
// it.
func newTrial(ctx context.Context, binary string, listeners []json.RawMessage) (*trial, error) {
	dir, err := os.MkdirTemp("", "outrigger-replay-") // mode 0700
	if err != nil {
		return nil, err
	}
	t := &trial{dir: dir, exited: make(chan struct{}), at: map[string]string{}}
	if err := t.start(ctx, binary, listeners); err != nil {
		return nil, errors.Join(err, t.end())
	}
	return t, nil
}

// end stops the Envoy and removes its directory.
func (t *trial) end() error {
	if t.cmd != nil && t.cmd.Process != nil {
		_ = t.cmd.Process.Kill() // it may have exited
		<-t.exited
	}
	return os.RemoveAll(t.dir)
}

func (t *trial) start(ctx context.Context, binary string, listeners []json.RawMessage) (err error) {
	if t.issuer, err = newIssuer(t.dir); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"node":  map[string]any{"id": "replay", "cluster": "replay"},
		"admin": map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}},
		// As in the bootstrap of the agent.
		"layered_runtime": map[string]any{"layers": []any{map[string]any{"name": "static", "static_layer": map[string]any{
			"re2.max_program_size.error_level": "32768", "envoy.reloadable_features.http_reject_path_with_fragment": false,
		}}}},
		"static_resources": map[string]any{"listeners": listeners},
	})
	if err != nil {
		return err
	}
	t.text = string(config)
	if err := os.WriteFile(filepath.Join(t.dir, "envoy.json"), config, 0o600); err != nil {
		return err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(t.dir, "envoy.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // Envoy has its own
	t.cmd = exec.Command(binary, "-c", "envoy.json", "--disable-hot-restart", "--log-level", "error", "--concurrency", "2", "--admin-address-path", "admin.txt")
	t.cmd.Dir, t.cmd.Stdout, t.cmd.Stderr = t.dir, log, log
	if err := t.cmd.Start(); err != nil {
		close(t.exited)
		return fmt.Errorf("start Envoy: %w; name its program with --envoy", err)
	}
	go func() {
		defer close(t.exited)
		_ = t.cmd.Wait() // it is killed, or says in its log why it exits
	}()
	return t.ready(ctx, len(listeners))
}

// ready waits until all listeners have addresses.
func (t *trial) ready(ctx context.Context, want int) error {
	deadline := time.NewTimer(trialStart)
	defer deadline.Stop()
	for {
		if err := t.find(ctx); err == nil && len(t.at) == want {
			return nil
		}
		select {
		case <-t.exited:
			return fmt.Errorf("the Envoy does not accept the configuration: %s", t.said())
		case <-deadline.C:
			return fmt.Errorf("the Envoy does not listen after %s: %s", trialStart, t.said())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(trialPoll):
		}
	}
}

// said returns the end of the log.
func (t *trial) said() string {
	text, _ := os.ReadFile(filepath.Join(t.dir, "envoy.log")) // as much as there is
	return plain(string(bytes.TrimSpace(text[max(0, len(text)-maxTrialLog):])))
}

// find reads the addresses of the listeners from the admin port.
func (t *trial) find(ctx context.Context) error {
	admin, err := os.ReadFile(filepath.Join(t.dir, "admin.txt"))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+strings.TrimSpace(string(admin))+"/listeners?format=json", http.NoBody)
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: late, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	var answer struct {
		Listeners []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Host string `json:"address"`
					Port int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	for _, l := range answer.Listeners {
		if l.Address.Socket.Port > 0 {
			t.at[l.Name] = net.JoinHostPort(l.Address.Socket.Host, strconv.Itoa(l.Address.Socket.Port))
		}
	}
	return nil
}

// reads reports whether the configuration may compare a header, whose name is in lower case.
func (t *trial) reads(header string) bool {
	return strings.Contains(t.text, quoted(header))
}

// quoted returns a text as it is in the configuration.
func quoted(text string) string {
	out, _ := json.Marshal(text) // a text is always JSON
	return string(out)
}

// readsTokens reports whether the configuration validates tokens.
func (t *trial) readsTokens() bool { return strings.Contains(t.text, ".JwtAuthentication\"") }

// readsClaim reports whether the configuration may compare a claim of tokens.
func (t *trial) readsClaim(name string) bool {
	claim := quoted(name)
	return name == "iss" || name == "aud" || strings.Contains(t.text, claim) || strings.Contains(t.text, strings.TrimSuffix(claim, `"`)+".")
}

// readsAddresses reports whether the configuration may compare addresses of clients.
func (t *trial) readsAddresses() bool {
	lower := strings.ToLower(strings.ReplaceAll(t.text, "_", ""))
	return strings.Contains(lower, "sourceip") || strings.Contains(lower, "remoteip") || strings.Contains(lower, "sourceport")
}
