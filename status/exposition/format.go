// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package exposition

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/prometheus/common/expfmt"
)

// Format is one of the Prometheus formats.
type Format struct {
	kind kind
	// contentType is the complete media type, with version and escaping.
	contentType string
}

type kind int

const (
	text kind = iota
	openMetrics
	protobuf
)

// Negotiate returns the format that the Accept header of a scraper requests. It returns the text
// format if none of the requested formats is supported.
func Negotiate(header http.Header) Format {
	// Text comes first, for clients that accept anything, such as browsers and curl.
	accepted := []expfmt.Format{expfmt.NewFormat(expfmt.TypeTextPlain), expfmt.NewFormat(expfmt.TypeProtoDelim)}
	for _, version := range []string{expfmt.OpenMetricsVersion_1_0_0, expfmt.OpenMetricsVersion_0_0_1} {
		if f, err := expfmt.NewOpenMetricsFormat(version); err == nil {
			accepted = append(accepted, f)
		}
	}
	f := expfmt.NegotiateAccept(header, accepted...)
	format := Format{contentType: string(f)}
	switch f.FormatType() {
	case expfmt.TypeProtoDelim:
		format.kind = protobuf
	case expfmt.TypeOpenMetrics:
		format.kind = openMetrics
	}
	return format
}

// ContentType returns the media type of a response in this format.
func (f Format) ContentType() string { return f.contentType }

// Accept returns the Accept header for requests to a source. It prefers formats that can be
// converted to this format with the least loss.
func (f Format) Accept() string {
	escaping := ""
	if _, params, err := mime.ParseMediaType(f.contentType); err == nil && params["escaping"] != "" {
		escaping = ";escaping=" + params["escaping"]
	}
	const (
		proto = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
		om    = "application/openmetrics-text;version=1.0.0"
		plain = "text/plain;version=0.0.4"
	)
	ask := func(formats ...string) string {
		for i := range formats {
			formats[i] += fmt.Sprintf("%s;q=0.%d", escaping, 9-2*i)
		}
		return strings.Join(append(formats, "*/*;q=0.1"), ",")
	}
	switch f.kind {
	case protobuf:
		return ask(proto, plain)
	case openMetrics:
		return ask(om, plain)
	default:
		return ask(plain, om)
	}
}

// kindOf parses the Content-Type of a source. A missing or unspecific type mostly means text.
func kindOf(contentType string) (kind, error) {
	name, params, err := mime.ParseMediaType(contentType)
	switch {
	case contentType == "", name == "text/plain", name == "" && err != nil:
		return text, nil
	case name == "application/openmetrics-text":
		return openMetrics, nil
	case name == "application/vnd.google.protobuf" && params["encoding"] == "delimited":
		return protobuf, nil
	}
	return text, fmt.Errorf("it responded with %q, which is not a known format of metrics", contentType)
}
