package functions

import (
	"encoding/json"
	"io"
	"time"
)

// Namespace and MetricName are where CloudWatch has the functions' metric; it has the
// dimensions function and outcome, and counts changes.
const (
	Namespace  = "Holdfast"
	MetricName = "holdfast_functions_records_total"
)

// emf is a log line in CloudWatch's embedded metric format; the names are those of its
// specification.
type emf struct {
	AWS struct {
		Timestamp         int64          `json:"Timestamp"` // Unix ms
		CloudWatchMetrics []emfDirective `json:"CloudWatchMetrics"`
	} `json:"_aws"`
	Function string `json:"function"`
	Outcome  string `json:"outcome"`
	Count    int    `json:"holdfast_functions_records_total"`
}

type emfDirective struct {
	Namespace  string      `json:"Namespace"`
	Dimensions [][]string  `json:"Dimensions"`
	Metrics    []emfMetric `json:"Metrics"`
}

type emfMetric struct {
	Name string `json:"Name"`
	Unit string `json:"Unit"`
}

// writeCounts writes a line for each outcome: a dimension has one value a line. The line
// must be nothing but the JSON object. A log that cannot be written is dropped.
func writeCounts(w io.Writer, now time.Time, function string, counts map[string]int) {
	for outcome, n := range counts {
		line := emf{Function: function, Outcome: outcome, Count: n}
		line.AWS.Timestamp = now.UnixMilli()
		line.AWS.CloudWatchMetrics = []emfDirective{{
			Namespace: Namespace, Dimensions: [][]string{{"function", "outcome"}},
			Metrics: []emfMetric{{Name: MetricName, Unit: "Count"}},
		}}
		_ = json.NewEncoder(w).Encode(line)
	}
}
