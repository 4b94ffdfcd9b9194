// Package cost_test works out what a deployment costs: how much of everything the
// templates in cloudformation/ make, what a launch uses by the model of
// internal/capacity, and the unit prices of prices.csv. README.md beside it shows the
// result; whoever has other prices writes them into prices.csv and has it written anew:
//
//	go test ./deploy/cost -run Bill -update
//
// A price that nobody has read stays empty: it stands in the totals by its name and is
// never guessed. Clock: none.
package cost_test

import (
	"encoding/csv"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"holdfast/internal/capacity"
)

var update = flag.Bool("update", false, "write the tables of README.md anew")

const (
	root = "../../"
	// monthHours is what a monthly price is divided by.
	monthHours = 730
	// zones is in how many an interface endpoint of the network stack stands.
	zones = 3
)

// price is a row of prices.csv.
type price struct {
	id, what, unit string
	usd            float64
	known          bool
	region, page   string
	dated, read    string
}

func prices(t *testing.T) (all []price, by map[string]price) {
	t.Helper()
	file, err := os.Open("prices.csv")
	if err != nil {
		t.Fatalf("open prices: got %v, want nil", err)
	}
	defer func() { _ = file.Close() }() // read only
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatalf("read prices: got %v, want nil", err)
	}
	if got, want := strings.Join(rows[0], ","), "id,what,unit,usd,region,page,dated,read"; got != want {
		t.Fatalf("header of prices: got %s, want %s", got, want)
	}
	by = map[string]price{}
	for _, r := range rows[1:] {
		p := price{id: r[0], what: r[1], unit: r[2], region: r[4], page: r[5], dated: r[6], read: r[7]}
		if r[3] != "" {
			if p.usd, err = strconv.ParseFloat(r[3], 64); err != nil || p.usd <= 0 {
				t.Errorf("price of %s: got %q, want a number over 0, or nothing", p.id, r[3])
			}
			p.known = true
		}
		if _, twice := by[p.id]; twice {
			t.Errorf("price %s: got it twice, want it once", p.id)
		}
		all, by[p.id] = append(all, p), p
	}
	return all, by
}

// template is one stack.
type template struct {
	Mappings struct {
		Sizes map[string]map[string]yaml.Node `yaml:"Sizes"`
	} `yaml:"Mappings"`
	Parameters map[string]yaml.Node `yaml:"Parameters"`
	Outputs    map[string]yaml.Node `yaml:"Outputs"`
	Resources  map[string]resource  `yaml:"Resources"`
}

type resource struct {
	Type       string    `yaml:"Type"`
	Condition  string    `yaml:"Condition"`
	Properties yaml.Node `yaml:"Properties"`
}

// stacks are the templates in the order in which they are created.
func stacks() []string {
	return []string{"network", "data", "backoffice", "compute", "functions", "edge", "alarms"}
}

func read(t *testing.T, name string) template {
	t.Helper()
	text, err := os.ReadFile(root + "cloudformation/" + name + ".yaml")
	if err != nil {
		t.Fatalf("read template: got %v, want nil", err)
	}
	var out template
	if err := yaml.Unmarshal(text, &out); err != nil {
		t.Fatalf("decode %s: got %v, want nil", name, err)
	}
	return out
}

// size is one of the two that every template knows.
type size string

// has tells whether the size has the resource.
func (s size) has(t *testing.T, r resource) bool {
	t.Helper()
	switch r.Condition {
	case "":
		return true
	case "Launch":
		return s == "launch"
	}
	return false // what is asked for beyond the size, as DNS records and access logs are
}

// of lists the resources of a type that a size has.
func (s size) of(t *testing.T, tpl template, kind string) []resource {
	t.Helper()
	var out []resource
	for _, name := range slices.Sorted(maps.Keys(tpl.Resources)) {
		if r := tpl.Resources[name]; r.Type == kind && s.has(t, r) {
			out = append(out, r)
		}
	}
	return out
}

// setting is a value of the template's mapping of sizes.
func (s size) setting(t *testing.T, tpl template, name string) string {
	t.Helper()
	node, found := tpl.Mappings.Sizes[string(s)][name]
	if !found {
		t.Fatalf("mapping Sizes: got no %s for %s, want one", name, s)
	}
	return node.Value
}

func (s size) number(t *testing.T, tpl template, name string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s.setting(t, tpl, name), 64)
	if err != nil {
		t.Fatalf("mapping Sizes: %s of %s: got %v, want a number", name, s, err)
	}
	return v
}

// find is the value under the keys, nil where there is none.
func find(node *yaml.Node, keys ...string) *yaml.Node {
	for _, key := range keys {
		if node == nil {
			return nil
		}
		var next *yaml.Node
		for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == key {
				next = node.Content[i+1]
			}
		}
		node = next
	}
	return node
}

// count is how often the key occurs below the node; what an !If gives to a launch alone
// counts for that alone.
func (s size) count(node *yaml.Node, key string) int {
	if node.Tag == "!If" && len(node.Content) == 3 && node.Content[0].Value == "Launch" {
		if s == "launch" {
			return s.count(node.Content[1], key)
		}
		return s.count(node.Content[2], key)
	}
	n := 0
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 && child.Value == key {
			n++
		}
		n += s.count(child, key)
	}
	return n
}

// line is one position: so many of it, at that price.
type line struct {
	what     string
	quantity float64
	price    string
}

// standing is what a size has standing there, by the hour: each line's quantity is of
// its price's own unit, an hour's or a month's.
func standing(t *testing.T, s size) []line {
	t.Helper()
	tpl := map[string]template{}
	keys, secrets, alarmed := 0, 0, 0
	for _, name := range stacks() {
		tpl[name] = read(t, name)
		keys += len(s.of(t, tpl[name], "AWS::KMS::Key"))
		secrets += len(s.of(t, tpl[name], "AWS::SecretsManager::Secret"))
		for _, db := range s.of(t, tpl[name], "AWS::RDS::DBInstance") {
			if p := db.Properties; find(&p, "ManageMasterUserPassword") != nil {
				secrets++
			}
		}
		for _, alarm := range s.of(t, tpl[name], "AWS::CloudWatch::Alarm") {
			p := alarm.Properties
			alarmed += max(1, s.count(&p, "MetricStat"))
		}
	}
	endpoints, rules := 0, 0
	for _, e := range s.of(t, tpl["network"], "AWS::EC2::VPCEndpoint") {
		if p := e.Properties; find(&p, "VpcEndpointType").Value == "Interface" {
			endpoints++
		}
	}
	for _, acl := range s.of(t, tpl["edge"], "AWS::WAFv2::WebACL") {
		p := acl.Properties
		rules += len(find(&p, "Rules").Content)
	}
	instances := s.number(t, tpl["compute"], "Instances")
	launchTemplate := s.of(t, tpl["compute"], "AWS::EC2::LaunchTemplate")[0].Properties
	disk, err := strconv.ParseFloat(find(find(&launchTemplate, "LaunchTemplateData", "BlockDeviceMappings").Content[0], "Ebs", "VolumeSize").Value, 64)
	if err != nil {
		t.Fatalf("disk of an instance: got %v, want GiB", err)
	}
	database := s.of(t, tpl["backoffice"], "AWS::RDS::DBInstance")[0].Properties
	databaseDisk, err := strconv.ParseFloat(find(&database, "AllocatedStorage").Value, 64)
	if err != nil {
		t.Fatalf("disk of the database: got %v, want GiB", err)
	}
	if s.setting(t, tpl["backoffice"], "MultiAz") == "true" {
		databaseDisk *= 2 // the standby has its own
	}
	return []line{
		{"EC2 " + s.setting(t, tpl["compute"], "InstanceType"), instances, "ec2-" + string(s)},
		{"their disks, GiB", instances * disk, "ec2-disk"},
		{"ElastiCache " + s.setting(t, tpl["data"], "RedisNode"), s.number(t, tpl["data"], "Nodes"), "redis-" + string(s)},
		{"RDS " + s.setting(t, tpl["backoffice"], "Class"), 1, "database-" + string(s)},
		{"its disk, GiB", databaseDisk, "database-disk"},
		{"NAT gateways", float64(len(s.of(t, tpl["network"], "AWS::EC2::NatGateway"))), "nat"},
		{"their addresses", float64(len(s.of(t, tpl["network"], "AWS::EC2::EIP"))), "address"},
		{"interface endpoints, each in three zones", float64(endpoints * zones), "endpoint"},
		{"balancer", float64(len(s.of(t, tpl["compute"], "AWS::ElasticLoadBalancingV2::LoadBalancer"))), "balancer"},
		{"firewall", float64(len(s.of(t, tpl["edge"], "AWS::WAFv2::WebACL"))), "firewall"},
		{"its rules", float64(rules), "rule"},
		{"keys", float64(keys), "key"},
		{"secrets", float64(secrets), "secret"},
		{"metrics that alarms look at", float64(alarmed), "alarm"},
		{"metrics of our own", ownMetrics, "metric"},
	}
}

// ownMetrics are those that deploy/cloudwatch counts: scraped, of the instances, and of
// the log's filters. What the functions write comes to it while they work.
const ownMetrics = 45 + 1 + 9

// warmWrites are the units a second that a new table, or index, takes without being asked
// (docs/capacity.md).
const warmWrites = 4_000

// event is a time that a size stands for, and what is used meanwhile.
type event struct {
	name  string
	hours float64
	scale float64 // of the design's launch
}

func events() map[size]event {
	return map[size]event{
		"small":  {"a rehearsal: a twentieth of the launch, four hours", 4, 0.05},
		"launch": {"a launch: the design's, a day", 24, 1},
	}
}

// used is what an event uses.
func used(s size) []line {
	in, e := capacity.Current(), events()[s]
	_, o := capacity.Choose(in, 1)
	u := capacity.Used(in, e.scale, o)
	lcus := u.LCUs
	if s == "small" {
		lcus = 1
	}
	return []line{
		{"CloudFront requests, 10 thousand", u.EdgeRequests / 1e4, "cdn-requests"},
		{"CloudFront data, GB", u.EdgeGB + u.OriginGB, "cdn-data"},
		{"firewall, million requests", u.EdgeRequests / 1e6, "firewall-requests"},
		{"balancer's LCUs, for all hours", lcus * e.hours, "lcu"},
		{"NAT data, GB", u.NATGB, "nat-data"},
		{"queue, million requests", u.SQSRequests / 1e6, "queue"},
		{"table, million write units", u.WriteUnits / 1e6, "writes"},
		{"table, million read units", u.ReadUnits / 1e6, "reads"},
		{"functions, million calls", u.Invocations / 1e6, "function-calls"},
		{"functions, GB-seconds", u.GBSeconds, "function-time"},
		{"mails, thousand", u.Paid / 1e3, "mail"},
		{"log data, GB", u.LogGB, "logs"},
	}
}

// sum adds what is known, and names what is not.
type sum struct {
	usd     float64
	unknown []string
}

func (s *sum) add(l line, p price) string {
	if l.quantity == 0 {
		return "0"
	}
	per, perHour := "", p.unit == "month" || p.unit == "GB-month"
	usd := l.quantity * p.usd
	if perHour {
		per, usd = fmt.Sprintf(" ÷ %d", monthHours), usd/monthHours
	}
	if !p.known {
		term := fmt.Sprintf("%s × `%s`%s", digits(l.quantity), p.id, per)
		s.unknown = append(s.unknown, term)
		return term
	}
	s.usd += usd
	return fmt.Sprintf("%.3f", usd)
}

// of is the sum of a rate for some hours and of what comes to it once.
func of(rate *sum, hours float64, once *sum) string {
	out := fmt.Sprintf("%.2f", rate.usd*hours+once.usd)
	for _, term := range rate.unknown {
		if hours != 1 {
			term = digits(hours) + " × " + term
		}
		out += " + " + term
	}
	for _, term := range once.unknown {
		out += " + " + term
	}
	return out
}

func digits(v float64) string {
	if v >= 10 || v == math.Trunc(v) {
		return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// tables are the generated parts of README.md.
func tables(t *testing.T) map[string]string {
	t.Helper()
	all, by := prices(t)
	lookup := func(id string) price {
		p, found := by[id]
		if !found {
			t.Fatalf("price %s: got no row in prices.csv, want one", id)
		}
		return p
	}
	both := []size{"small", "launch"}
	hourly, event := map[size]*sum{"small": {}, "launch": {}}, map[size]*sum{"small": {}, "launch": {}}
	grid := func(lines func(size) []line, sums map[size]*sum) string {
		cells := map[size][]string{}
		for _, s := range both {
			for _, l := range lines(s) {
				cells[s] = append(cells[s], sums[s].add(l, lookup(l.price)))
			}
		}
		out := "| what | small | USD | launch | USD |\n|---|---|---|---|---|\n"
		small, launch := lines("small"), lines("launch")
		for i := range small {
			what := small[i].what
			if what != launch[i].what {
				what += "; " + launch[i].what
			}
			out += fmt.Sprintf("| %s | %s | %s | %s | %s |\n", what, digits(small[i].quantity), cells["small"][i], digits(launch[i].quantity), cells["launch"][i])
		}
		return out
	}
	hours := grid(func(s size) []line { return standing(t, s) }, hourly)
	hours += fmt.Sprintf("| **an hour** | | **%s** | | **%s** |\n", of(hourly["small"], 1, &sum{}), of(hourly["launch"], 1, &sum{}))
	uses := grid(used, event)
	uses += fmt.Sprintf("| **by use** | | **%s** | | **%s** |\n", of(&sum{}, 1, event["small"]), of(&sum{}, 1, event["launch"]))

	totals := "| | USD |\n|---|---|\n"
	for _, s := range both {
		e := events()[s]
		totals += fmt.Sprintf("| `%s`, %s | %s |\n", s, e.name, of(hourly[s], e.hours, event[s]))
	}
	data := read(t, "data")
	once := sum{}
	once.add(line{"", 2 * max(0, size("launch").number(t, data, "WarmWrites")-warmWrites), "warm"}, lookup("warm"))
	totals += fmt.Sprintf("| `launch`, once for a new table and its index: units over what they have at first | %s |\n", of(&sum{}, 1, &once))
	for _, s := range both {
		totals += fmt.Sprintf("| `%s`, a month of %d hours in which nothing happens | %s |\n", s, monthHours, of(hourly[s], monthHours, &sum{}))
	}

	list := "| price | of what | USD | for | page | its date | read |\n|---|---|---|---|---|---|---|\n"
	for _, p := range all {
		usd, page := "**to be filled in**", p.page
		if p.known {
			usd = strconv.FormatFloat(p.usd, 'f', -1, 64) + " per " + p.unit
			if p.page == "docs/capacity.md" {
				page = "[docs/capacity.md](../../docs/capacity.md#inputs)"
			}
		}
		list += fmt.Sprintf("| `%s` | %s | %s | %s | %s | %s | %s |\n", p.id, p.what, usd, p.region, page, p.dated, p.read)
	}
	return map[string]string{"hour": hours, "use": uses, "totals": totals, "prices": list}
}

const document = "README.md"

func TestBill_DocumentShowsWhatTemplatesAndPricesMake(t *testing.T) {
	doc, err := os.ReadFile(document)
	if err != nil {
		t.Fatalf("read: got %v, want nil", err)
	}
	want, text := tables(t), string(doc)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		before, rest, found := strings.Cut(text, "<!-- generated: "+name+" -->\n")
		have, after, closed := strings.Cut(rest, "<!-- end -->\n")
		if !found || !closed {
			t.Errorf("%s: got no part %q with an end, want one", document, name)
			continue
		}
		if *update {
			text = before + "<!-- generated: " + name + " -->\n" + want[name] + "<!-- end -->\n" + after
			continue
		}
		if diff := cmp.Diff(want[name], have); diff != "" {
			t.Errorf("%s, %s (-model +document), go test ./deploy/cost -run Bill -update writes it anew:\n%s", document, name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(document, []byte(text), 0o644); err != nil {
			t.Fatalf("write: got %v, want nil", err)
		}
	}
}

// A price that is there says where it was read and when; one that is not says nothing.
func TestPrices_EachHasItsPageOrIsEmpty(t *testing.T) {
	t.Parallel()
	all, _ := prices(t)
	for _, p := range all {
		said := p.region != "" && p.page != "" && p.read != ""
		if p.known != said {
			t.Errorf("price %s: got %v with region %q, page %q, read %q: want a price with all three, or none of them", p.id, p.usd, p.region, p.page, p.read)
		}
		if p.page != "" && p.page != "docs/capacity.md" && !strings.Contains(p.page, "://") {
			t.Errorf("price %s: got page %q, want an address", p.id, p.page)
		}
	}
}

// What was taken over from the capacity model is still what that says, and none of it is
// a guess there.
func TestPrices_AgreeWithTheCapacityModel(t *testing.T) {
	t.Parallel()
	_, by := prices(t)
	x := capacity.Current().Prices
	for id, want := range map[string]capacity.Figure{
		"redis-launch": x.RedisNode, "balancer": x.ALB, "lcu": x.LCU, "cdn-requests": x.Requests, "cdn-data": x.Transfer,
		"queue": x.SQS, "writes": x.Write, "reads": x.Read, "function-calls": x.Invoke, "mail": x.Mail, "function-time": x.Lambda,
		"ec2-launch": {Value: 2 * x.Core.Value, Mark: x.Core.Mark},
	} {
		if got := by[id]; got.known && (math.Abs(got.usd-want.Value) > 1e-6*want.Value || want.Mark != capacity.Given) {
			t.Errorf("price %s: got %v, want %v, a figure with a source and not %s", id, got.usd, want.Value, want.Mark)
		}
	}
	for _, p := range by {
		if p.page == "docs/capacity.md" && p.known && p.id != "ec2-launch" && !slices.Contains([]string{
			"redis-launch", "balancer", "lcu", "cdn-requests", "queue", "writes", "reads", "function-calls", "mail", "function-time",
		}, p.id) {
			t.Errorf("price %s: got the capacity model as its page and no comparison with it, want one", p.id)
		}
	}
}
