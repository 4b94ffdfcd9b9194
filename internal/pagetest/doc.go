// Package pagetest tests the page that candidates meet, in a real browser against
// the real server: the API as it runs in production, over a Redis pair, a worker and
// the mock gateway with its payer's page. The tests say what a person sees and what
// became of the seat. Every state they come by must fit 320 pixels in both languages and
// pass axe-core, its contrasts in the dark too, and is kept as a picture in
// artefacts/page, 320 and 1000 pixels wide. Every tab fails its test for an error on the
// console, a violation of the policy, and a request to anything but the site itself and
// the gateway.
//
// It needs Chromium, a redis-server and axe-core, which `make setup` installs. Without
// one of them the tests are skipped with a message, or fail with CI=true in the
// environment; with -short they are skipped.
//
// Untested here: browsers other than this Chromium (that the script keeps to what
// Chrome 64 knows is tested in internal/httpapi/web), screen readers, real mobile
// networks, the CDN, and whether the Bangla is good Bangla.
//
// Clock: the ledger's, the server's and the gateway's are moved together by the test;
// the browser's own is real, set wrong on purpose, or moved on by itself.
package pagetest
