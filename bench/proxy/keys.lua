-- Keys that go to all three nodes in turn.
local at = 0
request = function()
    at = at + 1
    return wrk.format("GET", "/packages/" .. (at % 3) .. "-name-" .. (at % 1000))
end
