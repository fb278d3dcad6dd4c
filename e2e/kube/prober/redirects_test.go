// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package prober

import (
	"io"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/kubernetes/pkg/probe"
)

// redirecting responds with redirects by path.
func redirecting(w http.ResponseWriter, r *http.Request) {
	to := func(code int, location string) {
		w.Header().Set("Location", location)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, "body of the redirect")
	}
	switch path := r.URL.Path; path {
	case "/relative":
		to(http.StatusFound, "/there")
	case "/sibling":
		to(http.StatusFound, "there")
	case "/query":
		to(http.StatusFound, "?a=b")
	case "/301", "/302", "/303", "/307", "/308":
		code, _ := strconv.Atoi(path[1:])
		to(code, "/there")
	case "/absolute":
		to(http.StatusFound, "http://"+r.Host+"/there")
	case "/other-host":
		to(http.StatusFound, "http://other.example/there")
	case "/other-loopback":
		to(http.StatusFound, "http://127.77.50.99:1/there")
	case "/same-host-closed":
		to(http.StatusFound, "http://"+podIP+":1/there")
	case "/name-of-the-host":
		to(http.StatusFound, "//"+r.Host+"/there")
	case "/https":
		to(http.StatusMovedPermanently, "https://"+r.Host+"/there")
	case "/credentials":
		to(http.StatusFound, "http://a:b@"+r.Host+"/there")
	case "/scheme":
		to(http.StatusFound, "ftp://"+r.Host+"/there")
	case "/broken":
		to(http.StatusFound, "http://[::1/%zz")
	case "/fails":
		to(http.StatusFound, "/code/500")
	case "/code/500":
		w.WriteHeader(http.StatusInternalServerError)
	case "/loop":
		to(http.StatusFound, "/loop")
	case "/slow":
		to(http.StatusFound, "/never")
	case "/never":
		<-r.Context().Done()
	case "/nowhere":
		w.WriteHeader(http.StatusFound)
		_, _ = io.WriteString(w, "no location")
	case "/there", "/":
		mirror(w, r)
	default:
		// /count/N is N redirects.
		if n, err := strconv.Atoi(strings.TrimPrefix(path, "/count/")); err == nil && n > 0 {
			to(http.StatusFound, "/count/"+strconv.Itoa(n-1))
		}
	}
}

func redirects() []httpCase {
	const warning = "Probe terminated redirects, Response body: body of the redirect"
	all := []httpCase{
		{name: "relative", path: "/relative", want: probe.Success},
		{name: "to a sibling", path: "/sibling", want: probe.Success},
		{name: "to a query", path: "/query", want: probe.Failure, class: "no answer"},
		{name: "absolute", path: "/absolute", want: probe.Success},
		{name: "to the host by its authority", path: "/name-of-the-host", want: probe.Success},
		{name: "relative with a Host", path: "/relative", headers: header("Host", "shop.example"), want: probe.Success},
		{name: "absolute with a Host", path: "/absolute", headers: header("Host", "shop.example"), want: probe.Warning, class: warning},
		{name: "relative with headers", path: "/relative", headers: header("X-A", "1", "Authorization", "a"), want: probe.Success},
		{name: "to another host", path: "/other-host", want: probe.Warning, class: warning},
		{name: "to another address", path: "/other-loopback", want: probe.Warning, class: warning},
		{name: "to another port, closed", path: "/same-host-closed", want: probe.Failure, class: "no answer"},
		{name: "to TLS that is none", path: "/https", want: probe.Failure, class: "no answer"},
		{name: "with credentials", path: "/credentials", want: probe.Success},
		{name: "to another scheme", path: "/scheme", want: probe.Failure, class: "no answer"},
		{name: "to a broken place", path: "/broken", want: probe.Failure, class: "no answer"},
		{name: "to a failure", path: "/fails", want: probe.Failure, class: unanswered},
		{name: "to itself", path: "/loop", want: probe.Failure, class: "no answer"},
		{name: "without a place", path: "/nowhere", want: probe.Warning, class: "Probe terminated redirects, Response body: no location"},
		{name: "nine in a row", path: "/count/9", want: probe.Success},
		{name: "ten in a row", path: "/count/10", want: probe.Failure, class: "no answer"},
	}
	for _, code := range []string{"301", "302", "303", "307", "308"} {
		all = append(all, httpCase{name: code, path: "/" + code, want: probe.Success})
	}
	for i := range all {
		all[i].name = "redirect " + all[i].name
		all[i].handler = redirecting
	}
	return all
}
