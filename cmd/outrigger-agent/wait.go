// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	neturl "net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// maxReason is how many bytes are read of an answer that is not 200.
const maxReason = 1 << 10

func newWaitCommand() *cobra.Command {
	var (
		url                                   string
		timeoutSeconds, requestMillis, period int
	)
	cmd := &cobra.Command{
		Use:     "wait",
		Short:   "Wait until the proxy is ready",
		Long:    "wait requests a URL until the response is 200, and fails after a timeout.",
		Args:    cobra.NoArgs,
		Example: "  outrigger-agent wait\n  outrigger-agent wait --url http://127.0.0.1:15020/healthz/ready --timeoutSeconds 30",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeoutSeconds < 1 || requestMillis < 1 || period < 1 {
				return fmt.Errorf("--timeoutSeconds, --requestTimeoutMillis and --periodMillis must be 1 or more")
			}
			if u, err := neturl.Parse(url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				return fmt.Errorf("--url is %q; it must be a URL such as http://localhost:15021/healthz/ready", url)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Duration(timeoutSeconds)*time.Second)
			defer cancel()
			return waitFor(ctx, url, time.Duration(requestMillis)*time.Millisecond, time.Duration(period)*time.Millisecond)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&url, "url", "http://localhost:15021/healthz/ready", "URL to request")
	fs.IntVar(&timeoutSeconds, "timeoutSeconds", 60, "total time to wait")
	fs.IntVar(&requestMillis, "requestTimeoutMillis", 500, "time to wait for one response")
	fs.IntVar(&period, "periodMillis", 500, "time between two requests")
	return cmd
}

// waitFor requests a URL at once and then every period, until the answer is 200.
func waitFor(ctx context.Context, url string, request, period time.Duration) error {
	client := &http.Client{Timeout: request}
	var last error
	for {
		err := ask(ctx, client, url)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // keep the reason rather than the timeout
		}
		timer := time.NewTimer(period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%s did not become ready in time: %w", url, last)
		case <-timer.C:
		}
	}
}

func ask(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // only read: nothing can be lost
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	// The first line says what is not ready; if there is none, the status must suffice.
	line, _ := bufio.NewReader(io.LimitReader(resp.Body, maxReason)).ReadString('\n')
	if line = strings.TrimSpace(line); line != "" {
		return fmt.Errorf("it returned %s: %s", resp.Status, line)
	}
	return fmt.Errorf("it returned %s", resp.Status)
}
